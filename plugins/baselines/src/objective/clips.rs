//! Fractions of tokens whose ratio is clipped, by side.

use capo_plugin::Ctx;

use super::ratio::Level;

/// Side of 1 on which a ratio is clipped.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Side {
    Below,
    Above,
}

/// Fractions of clipped tokens, or of clipped completions where a completion's tokens share one
/// ratio (TRL `clip_ratio/*`).
pub(super) struct Clips {
    level: Level,
    /// For the current completion: number of tokens, clipped below, and clipped above.
    row: [u64; 3],
    all: [u64; 3],
    /// Smallest fraction clipped below and largest fraction clipped above within one completion.
    extremes: Option<(f64, f64)>,
}

impl Clips {
    pub fn new(level: Level) -> Self {
        Self {
            level,
            row: [0; 3],
            all: [0; 3],
            extremes: None,
        }
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
        let low = share(row[1], row[0]);
        let high = share(row[2], row[0]);
        let (least, most) = self.extremes.unwrap_or((low, high));
        self.extremes = Some((least.min(low), most.max(high)));
        for (all, row) in self.all.iter_mut().zip(row) {
            *all += row;
        }
    }

    /// Records the fractions of both sides as `clip_ratio/...`.
    pub fn record(&self, ctx: &mut Ctx<'_>) {
        let [counted, low, high] = self.all;
        let (least, most) = self.extremes.unwrap_or_default();
        ctx.record("clip_ratio/low_mean", share(low, counted));
        ctx.record("clip_ratio/low_min", least);
        ctx.record("clip_ratio/high_mean", share(high, counted));
        ctx.record("clip_ratio/high_max", most);
        ctx.record("clip_ratio/region_mean", share(low + high, counted));
    }

    /// Records the fraction clipped above as `name`.
    pub fn record_above(&self, ctx: &mut Ctx<'_>, name: &str) {
        let [counted, _, high] = self.all;
        ctx.record(name, share(high, counted));
    }
}

fn share(count: u64, of: u64) -> f64 {
    count as f64 / of.max(1) as f64
}
