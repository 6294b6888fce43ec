//! Named random streams: every draw of a run is a pure function of `(seed, name, indices)`.
//!
//! No state outlives a draw, so there is nothing to checkpoint: a resumed run opens the same
//! stream, `stream(seed, "rollout.sample", &[step, row])`, and gets the same numbers. Integer and
//! float draws are implemented here instead of taken from `rand`'s distributions, whose values may
//! change between releases.
//!
//! Functions that draw many numbers take the stream's own type and not any generator, so they are
//! compiled in this crate, which is optimized in test builds too.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha12Rng;
use sha2::{Digest, Sha256};

/// Prefix of every hashed key. It must change if the draws in this file change.
const DOMAIN: &[u8] = b"host.rng/1\0";

/// The random stream called `name` at position `index` (for example `[step, row]`) of the run with
/// this `seed`.
///
/// Streams that differ in seed, name, an index or the number of indices are independent: the ChaCha
/// key is the SHA-256 of all of them.
pub fn stream(seed: u64, name: &str, index: &[u64]) -> ChaCha12Rng {
    let mut key = Sha256::new();
    key.update(DOMAIN);
    key.update(seed.to_le_bytes());
    key.update((name.len() as u64).to_le_bytes());
    key.update(name.as_bytes());
    for value in index {
        key.update(value.to_le_bytes());
    }
    ChaCha12Rng::from_seed(key.finalize().into())
}

/// A uniform draw from `[0, 1)` with 53 random bits.
pub fn uniform(rng: &mut impl Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

/// A uniform draw from `0..bound`, free of modulo bias; a bound of 0 gives 0.
pub fn below(rng: &mut ChaCha12Rng, bound: u64) -> u64 {
    if bound == 0 {
        return 0;
    }
    // Values from `limit` on would favour small remainders.
    let limit = u64::MAX - u64::MAX % bound;
    loop {
        let draw = rng.next_u64();
        if draw < limit {
            return draw % bound;
        }
    }
}

/// Fills `out` with independent standard normal draws (Box–Muller, with both values of each pair
/// used).
pub fn fill_standard_normal(rng: &mut ChaCha12Rng, out: &mut [f32]) {
    for pair in out.chunks_mut(2) {
        // 1 - u is in (0, 1], so the logarithm is finite.
        let radius = (-2.0 * (1.0 - uniform(rng)).ln()).sqrt();
        let angle = std::f64::consts::TAU * uniform(rng);
        pair[0] = (radius * angle.cos()) as f32;
        if let Some(second) = pair.get_mut(1) {
            *second = (radius * angle.sin()) as f32;
        }
    }
}

/// A uniformly random permutation of `0..len` (Fisher–Yates).
pub fn permutation(rng: &mut ChaCha12Rng, len: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..len).collect();
    for last in (1..len).rev() {
        let other = below(rng, last as u64 + 1) as usize;
        order.swap(last, other);
    }
    order
}
