//! Adam's moments of the last layer: the model's own, for the rows that a gradient has touched, or
//! the trainer's.

use std::collections::HashMap;

use crate::optimizer::MomentRow;

/// First and second moments of R rows, in the order in which the rows first appeared.
///
/// A row is written only when a gradient touches it. `row` reports the number of steps since then,
/// and readers apply the missed decays. The numbers are then those of dense Adam over the whole
/// `[V, D]` matrix. With frozen untouched rows, readers skip the decays.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Moments {
    /// V and D of the batches seen; 0 before the first step.
    pub vocab_size: usize,
    pub width: usize,
    /// Steps taken.
    pub steps: u64,
    /// The rows that have moments.
    pub slots: Vec<Slot>,
    /// Index in `slots` of each row.
    places: HashMap<u32, usize>,
}

/// Moments of one row. Each has its own memory, so that new rows move none of the old ones.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Slot {
    /// Vocabulary row.
    pub row: u32,
    /// Value of `Moments::steps` after this row was last written.
    pub written: u64,
    /// `[D]`: first moment.
    pub exp_avg: Box<[f32]>,
    /// `[D]`: second moment.
    pub exp_avg_sq: Box<[f32]>,
}

impl Slot {
    fn zero(row: u32, steps: u64, width: usize) -> Self {
        Self {
            row,
            written: steps,
            exp_avg: vec![0.0; width].into(),
            exp_avg_sq: vec![0.0; width].into(),
        }
    }
}

impl Moments {
    /// Moments with these slots; `None` if two slots have the same row.
    pub fn new(vocab_size: usize, width: usize, steps: u64, slots: Vec<Slot>) -> Option<Self> {
        let places: HashMap<u32, usize> = slots
            .iter()
            .enumerate()
            .map(|(place, slot)| (slot.row, place))
            .collect();
        (places.len() == slots.len()).then_some(Self {
            vocab_size,
            width,
            steps,
            slots,
            places,
        })
    }

    /// The moments of `rows`, which must be distinct, in their order and writable; zero for new
    /// rows.
    pub fn rows_mut(&mut self, rows: impl Iterator<Item = u32>) -> Vec<&mut Slot> {
        let mut wanted = Vec::new();
        for row in rows {
            let place = *self.places.entry(row).or_insert(self.slots.len());
            if place == self.slots.len() {
                self.slots.push(Slot::zero(row, self.steps, self.width));
            }
            wanted.push(place);
        }
        let mut slots: Vec<Option<&mut Slot>> = self.slots.iter_mut().map(Some).collect();
        wanted
            .into_iter()
            .filter_map(|place| slots[place].take())
            .collect()
    }
}

/// Moments in host memory.
#[derive(Debug, Clone, Copy)]
pub(crate) enum HostSource<'a> {
    Own(&'a Moments),
    /// `[V, D]` each.
    Trainer {
        exp_avg: &'a [f32],
        exp_avg_sq: &'a [f32],
    },
}

impl<'a> HostSource<'a> {
    /// The row's moments, or `None` while they are zero; `width` is D.
    pub fn row(&self, row: u32, width: usize) -> Option<MomentRow<'a>> {
        match self {
            Self::Own(moments) => {
                let slot = &moments.slots[*moments.places.get(&row)?];
                let age = moments.steps - slot.written;
                Some(MomentRow {
                    exp_avg: &slot.exp_avg,
                    exp_avg_sq: &slot.exp_avg_sq,
                    age,
                    sign: 1.0,
                })
            }
            Self::Trainer {
                exp_avg,
                exp_avg_sq,
            } => {
                let span = row as usize * width..(row as usize + 1) * width;
                let exp_avg = &exp_avg[span.clone()];
                let exp_avg_sq = &exp_avg_sq[span];
                Some(MomentRow {
                    exp_avg,
                    exp_avg_sq,
                    age: 0,
                    sign: -1.0,
                })
            }
        }
    }
}
