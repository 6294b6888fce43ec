//! Quantiles of a quantity over recent steps, in constant memory.

use crate::{Ctx, PluginError};

/// Buckets per factor of two.
const PER_OCTAVE: u64 = 32;
/// Low bits of an `f64` that do not affect its bucket.
const FINE_BITS: u32 = 52 - PER_OCTAVE.ilog2();
/// Number of the first bucket, which begins at 2⁻⁶⁴, in a numbering of all positive `f64`.
const FIRST: u64 = (1023 - 64) * PER_OCTAVE;
/// Number of buckets, with one for all values below 2⁻⁶⁴ and one for all values from 2⁶⁴ up.
const BUCKETS: usize = 128 * PER_OCTAVE as usize + 2;
/// Factor on a step's counts for each later step.
const DECAY: f64 = 0.9;
/// First bytes of a saved state.
const TAG: [u8; 8] = *b"sketch/1";

/// Distribution of a quantity over the tokens of recent steps, for thresholds that must be known
/// before a step.
///
/// The sketch counts logarithms in fixed buckets, 32 per factor of two between 2⁻⁶⁴ and 2⁶⁴. Each
/// later step multiplies a step's counts by 0.9, so the last ten steps hold two thirds of all
/// counts. Sums of counts over ranks are exact, so all ranks hold the same bits.
///
/// ```
/// use capo_plugin::Sketch;
///
/// let sketch = Sketch::of((1..=1000).map(f64::from));
/// let limit = sketch.quantile(0.98).unwrap();
/// assert!((limit / 980.0 - 1.0).abs() < Sketch::RELATIVE_ERROR);
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sketch {
    /// Count per bucket; empty before the first token.
    counts: Vec<f64>,
}

impl Sketch {
    /// Largest relative error of a quantile between 2⁻⁶⁴ and 2⁶⁴: the width of a bucket.
    pub const RELATIVE_ERROR: f64 = 1.0 / PER_OCTAVE as f64;

    /// Sketch of `values` alone, each at least 0. NaN counts as infinite.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        Self::weighted(values.into_iter().map(|value| (value, 1.0)))
    }

    /// Sketch of pairs: a value, and its count, at least 0. A pair whose count is not finite is
    /// left out.
    pub fn weighted(values: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let mut counts = Vec::new();
        for (value, count) in values.into_iter().filter(|(_, count)| count.is_finite()) {
            counts.resize(BUCKETS, 0.0);
            counts[bucket(value)] += count;
        }
        Self { counts }
    }

    /// Adds one step's sketch, summed over all ranks. Call it in `step_end` on every rank, with the
    /// sketch of that rank's tokens or the error that prevented it. A step without counts changes
    /// nothing.
    ///
    /// # Errors
    ///
    /// The given error, the error of another rank, or a failed connection between the ranks.
    pub fn take_in(
        &mut self,
        ctx: &mut Ctx<'_>,
        step: Result<Self, PluginError>,
    ) -> Result<(), PluginError> {
        let ranks = ctx.collective();
        let mut counts = ranks.agree(step)?.counts;
        counts.resize(BUCKETS, 0.0);
        ranks.all_reduce_sum(&mut counts)?;
        if counts.iter().any(|&count| count > 0.0) {
            self.counts.resize(BUCKETS, 0.0);
            for (kept, new) in self.counts.iter_mut().zip(counts) {
                let old = DECAY * *kept;
                *kept = new + if old.is_normal() { old } else { 0.0 };
            }
        }
        Ok(())
    }

    /// The `share`-quantile, `share` from 0 to 1; `None` before the first token. Values below 2⁻⁶⁴
    /// count as 2⁻⁶⁴.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let mut left = share * self.counts.iter().sum::<f64>();
        let mut last = None;
        for (bucket, &count) in self
            .counts
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0.0)
        {
            let [low, high] = ends(bucket);
            last = Some(high);
            if left <= count {
                return Some(low + (high - low) * (left / count));
            }
            left -= count;
        }
        last
    }

    /// The bound b at which the mean of min(1, b ÷ value) over the counts is `share`, above 0 and
    /// below 1. `None` before the first count.
    pub fn bound(&self, share: f64) -> Option<f64> {
        let total = self.counts.iter().sum::<f64>();
        // Sums over the buckets above b: their counts, and counts ÷ values.
        let mut above = 0.0;
        let mut inverse = 0.0;
        let counted = self.counts.iter().enumerate().rev();
        for (bucket, &count) in counted.filter(|(_, count)| **count > 0.0) {
            let [low, high] = ends(bucket);
            let middle = 0.5 * (low + high);
            above += count;
            inverse += count / middle;
            let bound = (share * total - (total - above).max(0.0)) / inverse;
            if bound >= low {
                return Some(bound);
            }
        }
        (total > 0.0).then(|| share * total / inverse)
    }

    /// Serializes the sketch for a checkpoint.
    pub fn save(&self) -> Vec<u8> {
        let counts = self.counts.iter().flat_map(|count| count.to_le_bytes());
        TAG.into_iter()
            .chain([u8::from(self.counts.is_empty())])
            .chain(counts)
            .collect()
    }

    /// The sketch that [`save`](Self::save) wrote at the start of `state`, and the remaining bytes.
    ///
    /// # Errors
    ///
    /// When the bytes are not a saved sketch.
    pub fn load(state: &[u8]) -> Result<(Self, &[u8]), PluginError> {
        let (empty, rest) = state
            .strip_prefix(&TAG)
            .and_then(<[u8]>::split_first)
            .ok_or_else(no_sketch)?;
        let buckets = match empty {
            0 => BUCKETS,
            1 => 0,
            _ => return Err(no_sketch()),
        };
        let (counts, rest) = rest.split_at_checked(8 * buckets).ok_or_else(no_sketch)?;
        let counts: Vec<f64> = counts
            .as_chunks()
            .0
            .iter()
            .map(|bytes| f64::from_le_bytes(*bytes))
            .collect();
        if counts
            .iter()
            .all(|count| count.is_finite() && *count >= 0.0)
        {
            Ok((Self { counts }, rest))
        } else {
            Err(no_sketch())
        }
    }
}

/// Index of the bucket that holds a value.
fn bucket(value: f64) -> usize {
    if value.is_nan() {
        return BUCKETS - 1;
    }
    // The bit patterns of positive numbers have the order of the numbers.
    let number = if value > 0.0 {
        value.to_bits() >> FINE_BITS
    } else {
        0
    };
    (number + 1).saturating_sub(FIRST).min(BUCKETS as u64 - 1) as usize
}

/// Ends of a bucket; the first and the last bucket count as one value each.
fn ends(bucket: usize) -> [f64; 2] {
    [bucket.saturating_sub(1), bucket.min(BUCKETS - 2)]
        .map(|at| f64::from_bits((FIRST + at as u64) << FINE_BITS))
}

/// The error about a state that no sketch was saved in.
fn no_sketch() -> PluginError {
    PluginError::state("the saved state begins with no sketch (it was saved under another table)")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prelude::*;
    use crate::testing::{self, Fixture};
    use crate::{Draws, Ranks};

    /// Sketches the surprise of its tokens, or fails on a rank with one completion.
    #[keys]
    struct Surprise {
        /// Fail on a rank with one completion.
        #[key(default = false)]
        fails: bool,
        sketch: Sketch,
    }

    impl Mask for Surprise {
        fn mask(&mut self, _: &mut Ctx, _: &Batch, _: &mut [u8]) -> Result<(), PluginError> {
            Ok(())
        }

        fn step_end(
            &mut self,
            ctx: &mut Ctx,
            batch: &Batch,
            _: &[u8],
            _: bool,
        ) -> Result<(), PluginError> {
            let small = self.fails && batch.dims.completions == 1;
            let values = batch
                .logps
                .iter()
                .zip(batch.completion_mask)
                .filter(|(_, mask)| **mask == 1);
            let values = values.map(|(logp, _)| f64::from(-logp));
            self.sketch.take_in(
                ctx,
                if small {
                    Err(PluginError::failed("too small"))
                } else {
                    Ok(Sketch::of(values))
                },
            )
        }

        fn save(&self) -> Result<Vec<u8>, PluginError> {
            Ok(self.sketch.save())
        }
    }

    #[test]
    fn quantiles_are_near_the_exact_ones_where_data_are_skewed() {
        let mut draws = Draws::new(1, 2);
        let mut unit = || f64::from(draws.unit()).max(1e-6);
        let squares: Vec<f64> = (0..20_000)
            .map(|_| (1e-4 * (1.0 / unit() - 1.0)).powi(2))
            .collect();
        let powers: Vec<f64> = (0..20_000).map(|_| 1e-18 * (40.0 * unit()).exp()).collect();
        for mut values in [squares, powers] {
            let sketch = Sketch::of(values.iter().copied());
            values.sort_by(f64::total_cmp);
            for share in [1e-4, 0.01, 0.25, 0.5, 0.9, 0.98, 0.999, 1.0] {
                let exact = values[((share * 20_000.0_f64).ceil() as usize).max(1) - 1];
                let found = sketch.quantile(share).unwrap();
                assert!(
                    (found / exact - 1.0).abs() <= Sketch::RELATIVE_ERROR,
                    "{share}: {found} for {exact}"
                );
            }
        }
    }

    #[test]
    fn a_bound_leaves_a_share_of_counts_that_differ() {
        let mut draws = Draws::new(3, 4);
        let mut unit = || f64::from(draws.unit()).max(1e-6);
        let values: Vec<(f64, f64)> = (0..5_000)
            .map(|_| ((1e-3 / unit()).powi(3), unit()))
            .collect();
        let sketch = Sketch::weighted(values.iter().copied());
        let total: f64 = values.iter().map(|(_, count)| count).sum();
        for share in [1e-5, 0.02, 0.5, 0.97, 0.9999] {
            let bound = sketch.bound(share).unwrap();
            let left = values
                .iter()
                .map(|(value, count)| count * (bound / value).min(1.0))
                .sum::<f64>()
                / total;
            assert!(
                (left / share - 1.0).abs() <= Sketch::RELATIVE_ERROR,
                "{share}: {left} at {bound}"
            );
        }
        assert_eq!(
            (
                Sketch::default().bound(0.5),
                Sketch::weighted([(1.0, 0.0)]).bound(0.5)
            ),
            (None, None)
        );
        let known = [(1.0, 1.0), (2.0, 3.0)];
        let more = known
            .into_iter()
            .chain([(4.0, f64::INFINITY), (4.0, f64::NAN)]);
        assert_eq!(Sketch::weighted(more), Sketch::weighted(known));
    }

    #[test]
    fn values_beyond_the_buckets_count_at_their_ends() {
        let lowest = 2.0_f64.powi(-64);
        assert_eq!(Sketch::default().quantile(0.5), None);
        assert_eq!(
            Sketch::of([0.0, -0.0, -1.0, 1e-300]).quantile(0.5),
            Some(lowest)
        );
        let high = Sketch::of([1.0, f64::INFINITY, f64::NAN, f64::MAX]);
        assert_eq!(
            (high.quantile(0.0), high.quantile(0.9)),
            (Some(1.0), Some(lowest.recip()))
        );
    }

    #[test]
    fn a_step_counts_less_with_each_that_comes() {
        let mut mask = testing::mask::<Surprise>("").unwrap();
        let after = |mask: &mut crate::MaskHandle, logp: f32, lengths: &[usize], steps: usize| {
            let fixture = Fixture::new(2, 4).logps(&[logp; 8]).lengths(lengths);
            (0..steps).for_each(|_| fixture.step_end(mask, &[1; 8], true).unwrap());
            Sketch::load(&mask.save().unwrap()).unwrap().0
        };
        after(&mut mask, -8.0, &[4, 4], 20);
        let share =
            |sketch: &Sketch| sketch.counts[bucket(1.0)] / sketch.counts.iter().sum::<f64>();
        let sketch = after(&mut mask, -1.0, &[4, 4], 10);
        assert!((share(&sketch) - 0.680).abs() < 1e-3, "{}", share(&sketch));
        assert_eq!(
            after(&mut mask, -5.0, &[0, 0], 3),
            sketch,
            "steps without tokens"
        );
        assert!(
            share(&after(&mut mask, -1.0, &[4, 4], 200)) > 1.0 - 1e-9,
            "what is long ago is forgotten"
        );
    }

    #[test]
    fn ranks_come_to_the_state_of_the_whole() {
        let fixture = Fixture::new(3, 4).lengths(&[4, 2, 3]);
        let end = |table: &str, seat: Option<&testing::ThreadRank<'_>>| {
            let mut mask = testing::mask::<Surprise>(table).unwrap();
            let outcome = match seat {
                None => fixture.step_end(&mut mask, &[1; 12], true),
                Some(seat) => {
                    let part = fixture.part(if seat.rank() == 0 { 0..2 } else { 2..3 });
                    let token_mask = vec![1; part.batch().dims.len()];
                    part.step_end_on(seat, &mut mask, &token_mask, true)
                        .map(drop)
                }
            };
            outcome
                .map(|()| mask.save().unwrap())
                .map_err(|error| error.to_string())
        };
        let whole = end("", None);
        assert!(whole.is_ok());
        assert_eq!(
            testing::on_ranks(2, |seat| end("", Some(seat))),
            [whole.clone(), whole]
        );
        let told = testing::on_ranks(2, |seat| end("fails = true", Some(seat)).unwrap_err());
        assert!(
            told[0].ends_with("rank 1 could not go on (its own error says why)"),
            "{told:?}"
        );
        assert!(told[1].ends_with("too small"), "{told:?}");
    }

    #[test]
    fn bytes_are_those_of_a_sketch_or_refused() {
        for sketch in [Sketch::default(), Sketch::of([1e-3, 2.0])] {
            let saved = [sketch.save(), vec![7]].concat();
            assert_eq!(Sketch::load(&saved).unwrap(), (sketch, &[7][..]));
        }
        let saved = Sketch::of([1.0]).save();
        let nan = [&saved[..9], &f64::NAN.to_le_bytes(), &saved[17..]].concat();
        for wrong in [&[][..], &[0; 40], &saved[..saved.len() - 1], &nan] {
            assert_eq!(
                Sketch::load(wrong).unwrap_err().to_string(),
                "the saved state begins with no sketch (it was saved under another table)"
            );
        }
    }
}
