//! Saved state: a header, four arrays, a checksum; everything little-endian.
//!
//! | bytes | content |
//! |---|---|
//! | 8 | `capocurv` |
//! | 4 | format version, `u32` |
//! | 4 x 8 | vocabulary V, width D, steps, rows R, `u64` each |
//! | 10 | the switches of `Semantics::of_state`, index of their value, `u8` each |
//! | R x 4 | vocabulary row of each slot, `u32` |
//! | R x 8 | steps when last written, `u64`; not read where untouched rows are frozen |
//! | 2 x R x D x 4 | first moments, then second moments, `f32` |
//! | 4 | CRC-32 of all bytes before, `u32` |

use crate::moments::{Moments, Slot};
use crate::{Error, Semantics};

const MAGIC: &[u8; 8] = b"capocurv";
const VERSION: u32 = 3;
const HEADER: usize = 8 + 4 + 4 * 8 + 10;
const CHECKSUM: usize = 4;

pub(crate) fn encode(moments: &Moments, semantics: &Semantics) -> Vec<u8> {
    let slots = &moments.slots;
    let payload = slots.len() * (4 + 8 + 2 * 4 * moments.width);
    let mut bytes = Vec::with_capacity(HEADER + payload + CHECKSUM);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    for x in [
        moments.vocab_size as u64,
        moments.width as u64,
        moments.steps,
        slots.len() as u64,
    ] {
        bytes.extend_from_slice(&x.to_le_bytes());
    }
    bytes.extend(semantics.of_state().map(|setting| setting.index));
    bytes.extend(slots.iter().flat_map(|slot| slot.row.to_le_bytes()));
    bytes.extend(slots.iter().flat_map(|slot| slot.written.to_le_bytes()));
    bytes.extend(
        slots
            .iter()
            .flat_map(|slot| &slot.exp_avg)
            .flat_map(|x| x.to_le_bytes()),
    );
    bytes.extend(
        slots
            .iter()
            .flat_map(|slot| &slot.exp_avg_sq)
            .flat_map(|x| x.to_le_bytes()),
    );
    bytes.extend_from_slice(&crc32fast::hash(&bytes).to_le_bytes());
    bytes
}

pub(crate) fn decode(bytes: &[u8], semantics: &Semantics) -> Result<Moments, Error> {
    let mut rest = verified(bytes)?;
    let [vocab_size, width, steps, count] = [(); 4].map(|()| u64::from_le_bytes(take(&mut rest)));
    check_semantics(take(&mut rest), semantics)?;
    let row_bytes = 4 + 8 + 2 * 4 * u128::from(width);
    if u128::from(count) * row_bytes != rest.len() as u128 {
        return Err(damaged(&format!(
            "announces {count} rows of width {width}, has {} bytes for them",
            rest.len()
        )));
    }
    let [vocab_size, width, count] = [vocab_size, width, count].map(|x| x as usize);
    let rows: Vec<u32> = (0..count)
        .map(|_| u32::from_le_bytes(take(&mut rest)))
        .collect();
    let written: Vec<u64> = (0..count)
        .map(|_| u64::from_le_bytes(take(&mut rest)))
        .collect();
    let mut moments = || -> Vec<Box<[f32]>> {
        (0..count)
            .map(|_| {
                (0..width)
                    .map(|_| f32::from_le_bytes(take(&mut rest)))
                    .collect()
            })
            .collect()
    };
    let values = moments().into_iter().zip(moments());
    let in_vocabulary = rows.iter().all(|&row| (row as usize) < vocab_size);
    let in_past = written.iter().all(|&written| written <= steps);
    let slots = rows
        .into_iter()
        .zip(written)
        .zip(values)
        .map(|((row, written), (exp_avg, exp_avg_sq))| Slot {
            row,
            written,
            exp_avg,
            exp_avg_sq,
        })
        .collect();
    let decoded =
        Moments::new(vocab_size, width, steps, slots).filter(|_| in_vocabulary && in_past);
    decoded.ok_or_else(|| damaged("holds rows or steps out of range"))
}

/// Checks that the state's moments have the same meaning as the model's.
fn check_semantics(found: [u8; 10], semantics: &Semantics) -> Result<(), Error> {
    for (setting, index) in semantics.of_state().into_iter().zip(found) {
        let Some(name) = setting.names.get(usize::from(index)) else {
            return Err(damaged(&format!("has value {index} of `{}`", setting.key)));
        };
        if setting.index != index {
            let key = setting.key;
            let own = setting.names[usize::from(setting.index)];
            return Err(Error::state(format!(
                "curvature state was made with `{key}` = `{name}`, this model has `{own}` (set it \
                 as it was, or start without a state)"
            )));
        }
    }
    Ok(())
}

/// The part after the format version, after magic, version and checksum were verified.
fn verified(bytes: &[u8]) -> Result<&[u8], Error> {
    if !bytes.starts_with(MAGIC) {
        return Err(damaged("does not begin with `capocurv`"));
    }
    if bytes.len() < HEADER + CHECKSUM {
        return Err(damaged(&format!(
            "has {} bytes, expected at least {}",
            bytes.len(),
            HEADER + CHECKSUM
        )));
    }
    let (content, mut checksum) = bytes.split_at(bytes.len() - CHECKSUM);
    let mut rest = &content[MAGIC.len()..];
    let version = u32::from_le_bytes(take(&mut rest));
    if version != VERSION {
        return Err(Error::state(format!(
            "curvature state has format version {version}, expected {VERSION} (resume with the \
             version that wrote it)"
        )));
    }
    let got = crc32fast::hash(content);
    let expected = u32::from_le_bytes(take(&mut checksum));
    if got != expected {
        return Err(damaged(&format!(
            "has checksum {got:08x}, expected {expected:08x}"
        )));
    }
    Ok(rest)
}

/// Splits off the next `N` bytes; the caller guarantees that they exist.
fn take<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    let (head, tail) = rest
        .split_first_chunk()
        .expect("length is checked before reading");
    *rest = tail;
    *head
}

fn damaged(what: &str) -> Error {
    Error::state(format!(
        "curvature state {what} (it is damaged or not one: resume from another checkpoint)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Moments {
        let mut moments = Moments::new(9, 2, 3, Vec::new()).unwrap();
        let mut slots = moments.rows_mut([7, 4].into_iter());
        slots[0].exp_avg.copy_from_slice(&[1.0, -2.0]);
        slots[1]
            .exp_avg_sq
            .copy_from_slice(&[0.5, f32::MIN_POSITIVE]);
        slots.into_iter().for_each(|slot| slot.written = 4);
        moments.steps = 4;
        moments
    }

    /// `bytes` with `change` applied and a correct checksum.
    fn forged(change: impl Fn(&mut Vec<u8>)) -> Result<Moments, Error> {
        let mut bytes = encode(&sample(), &Semantics::PAPER);
        bytes.truncate(bytes.len() - CHECKSUM);
        change(&mut bytes);
        bytes.extend_from_slice(&crc32fast::hash(&bytes).to_le_bytes());
        decode(&bytes, &Semantics::PAPER)
    }

    #[test]
    fn inconsistent_content_is_refused_even_with_a_right_checksum() {
        let rows = HEADER;
        let written = HEADER + 2 * 4;
        assert_eq!(forged(|_| ()).unwrap(), sample());
        for (offset, byte, hint) in [
            (8, 1, "format version 1"),
            (12, 7, "out of range"), // vocabulary 7, row 7
            (20, 3, "width 3"),
            (28, 3, "out of range"), // 3 steps, written at 4
            (36, 1, "announces 1 rows"),
            (44, 2, "has value 2 of `feature`"),
            (
                52,
                1,
                "made with `rejected_batch` = `counts`, this model has `no_step`",
            ),
            (rows + 4, 7, "out of range"),
            (written, 5, "out of range"),
        ] {
            let error = forged(|bytes| bytes[offset] = byte)
                .unwrap_err()
                .to_string();
            assert!(error.contains(hint), "{offset}: {error}");
        }
    }
}
