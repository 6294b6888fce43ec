//! How often limits on a ratio hold, by side.

use capo_plugin::Ctx;

use super::ratio::Level;

/// On which side of 1 a limit holds.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Side {
    Below,
    Above,
}

/// Shares of tokens where a limit holds, or of completions where all tokens of one have the same ratio (TRL `clip_ratio/*`).
pub(super) struct Clips {
    level: Level,
    /// Counted, and those held below and above, of the current completion.
    row: [u64; 3],
    all: [u64; 3],
    /// Smallest share below and largest share above within one completion.
    extremes: Option<(f64, f64)>,
}

impl Clips {
    pub fn new(level: Level) -> Self {
        Self { level, row: [0; 3], all: [0; 3], extremes: None }
    }

    pub fn count(&mut self, held: Option<Side>) {
        self.row[0] += 1;
        self.row[1] += u64::from(held == Some(Side::Below));
        self.row[2] += u64::from(held == Some(Side::Above));
    }

    pub fn end_completion(&mut self) {
        let mut row = std::mem::take(&mut self.row);
        if row[0] == 0 {
            return;
        }
        if self.level != Level::Token {
            row = row.map(|count| count.min(1));
        }
        let (low, high) = (share(row[1], row[0]), share(row[2], row[0]));
        let (least, most) = self.extremes.unwrap_or((low, high));
        self.extremes = Some((least.min(low), most.max(high)));
        for (all, row) in self.all.iter_mut().zip(row) {
            *all += row;
        }
    }

    /// Both sides' shares, as `clip_ratio/...`.
    pub fn record(&self, ctx: &mut Ctx<'_>) {
        let [counted, low, high] = self.all;
        let (least, most) = self.extremes.unwrap_or_default();
        ctx.record("clip_ratio/low_mean", share(low, counted));
        ctx.record("clip_ratio/low_min", least);
        ctx.record("clip_ratio/high_mean", share(high, counted));
        ctx.record("clip_ratio/high_max", most);
        ctx.record("clip_ratio/region_mean", share(low + high, counted));
    }

    /// The share above, under a name of its own.
    pub fn record_above(&self, ctx: &mut Ctx<'_>, name: &str) {
        let [counted, _, high] = self.all;
        ctx.record(name, share(high, counted));
    }
}

fn share(count: u64, of: u64) -> f64 {
    count as f64 / of.max(1) as f64
}
