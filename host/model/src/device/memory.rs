//! The memory of the GPUs that this process has opened.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use capo_system::memory::text;

/// Memory of a GPU, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    pub free: u64,
    pub total: u64,
}

/// Memory at the moment of the call; `None` if the driver does not say.
type Now = Box<dyn Fn() -> Option<Memory> + Send>;

/// A GPU that this process has opened.
struct Opened {
    /// Name of the product.
    product: String,
    at_opening: Memory,
    now: Now,
}

static OPENED: Mutex<BTreeMap<String, Opened>> = Mutex::new(BTreeMap::new());

fn opened() -> MutexGuard<'static, BTreeMap<String, Opened>> {
    OPENED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes a device and its memory when it is opened for the first time.
#[cfg_attr(
    not(any(test, feature = "cuda")),
    expect(dead_code, reason = "without CUDA there is nothing to note")
)]
pub(super) fn note(name: &str, product: String, now: Now) {
    if let Some(at_opening) = now() {
        opened().entry(name.to_owned()).or_insert(Opened {
            product,
            at_opening,
            now,
        });
    }
}

/// Bytes of device `name` that were free when it was opened, before this process took any; `None`
/// for the CPU.
pub fn free_at_opening(name: &str) -> Option<u64> {
    opened().get(name).map(|opened| opened.at_opening.free)
}

/// Bytes of device `name` that were free at its opening and no longer are. The driver keeps the
/// memory that a process frees, so at the end of a run this is the most that the run held at a
/// time, unless other processes use the device. `None` for the CPU.
pub fn taken(name: &str) -> Option<u64> {
    let known = opened();
    let Opened {
        at_opening, now, ..
    } = known.get(name)?;
    Some(at_opening.free.saturating_sub(now()?.free))
}

/// The GPU and its memory, for a run's header; `None` for the CPU.
pub fn described(name: &str) -> Option<String> {
    let known = opened();
    let Opened {
        product,
        at_opening: Memory { free, total },
        ..
    } = known.get(name)?;
    Some(format!(
        "{product}, {} of {} free",
        text((*free).into()),
        text((*total).into())
    ))
}

/// The free memory of every opened GPU, for an error.
pub(super) fn now() -> Vec<String> {
    let mut lines = Vec::new();
    for (name, opened) in opened().iter() {
        if let Some(Memory { free, total }) = (opened.now)() {
            lines.push(format!(
                "`{name}` has {}, of which {} were free at the start and {} are now",
                text(total.into()),
                text(opened.at_opening.free.into()),
                text(free.into())
            ));
        }
    }
    lines
}
