//! The host's side of every call into a plugin. A call leaves the processor's floating-point
//! settings unchanged. A host that watches calls is told about drops too.

use std::arch::asm;
use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;

/// Runs a plugin's code, then restores the rounding mode, the treatment of denormals and the traps
/// of floating-point arithmetic. A library may change them for itself. A library built with
/// `-ffast-math`, for example, changes them when it is loaded.
pub fn keeping_arithmetic<R>(call: impl FnOnce() -> R) -> R {
    let _before = Arithmetic::now();
    call()
}

/// Function that wraps the drop of component `id`; it must call `drop` once.
type AroundDrop = fn(id: &str, drop: &mut dyn FnMut());

static AROUND_DROP: OnceLock<AroundDrop> = OnceLock::new();

/// From now on, drops the components of plugins inside `around`, which must call its argument once.
/// Only the first call has an effect.
pub fn watch_drops(around: AroundDrop) {
    AROUND_DROP.get_or_init(|| around);
}

/// A plugin's object. Its drop is guarded like every other call.
pub(crate) struct PluginObject<W> {
    id: String,
    /// `Some` until the object is dropped.
    wire: Option<W>,
}

impl<W> PluginObject<W> {
    pub(crate) fn new(id: &str, wire: W) -> Self {
        Self {
            id: id.to_owned(),
            wire: Some(wire),
        }
    }
}

impl<W> Deref for PluginObject<W> {
    type Target = W;
    fn deref(&self) -> &W {
        self.wire.as_ref().expect("it is not dropped")
    }
}

impl<W> DerefMut for PluginObject<W> {
    fn deref_mut(&mut self) -> &mut W {
        self.wire.as_mut().expect("it is not dropped")
    }
}

impl<W> Drop for PluginObject<W> {
    fn drop(&mut self) {
        let mut wire = self.wire.take();
        let mut drop = || keeping_arithmetic(|| drop(wire.take()));
        match AROUND_DROP.get() {
            Some(around) => around(&self.id, &mut drop),
            None => drop(),
        }
    }
}

/// This thread's floating-point settings, restored when the value is dropped.
pub(crate) struct Arithmetic(Control);

impl Arithmetic {
    pub(crate) fn now() -> Self {
        Self(Control::read())
    }

    /// Runs the host's own code in the middle of a plugin's call, under the host's settings.
    pub(crate) fn during<R>(&self, own: impl FnOnce() -> R) -> R {
        let _plugins = Self::now();
        self.0.write();
        own()
    }
}

impl Drop for Arithmetic {
    fn drop(&mut self) {
        self.0.write();
    }
}

/// The control register of SSE, in which all floating-point arithmetic of Rust runs.
#[cfg(target_arch = "x86_64")]
#[derive(PartialEq)]
struct Control(u32);

#[cfg(target_arch = "x86_64")]
impl Control {
    /// Status bits of the register: they record exceptions and do not control arithmetic.
    const HAPPENED: u32 = 0x3f;

    fn read() -> Self {
        let mut mxcsr = 0_u32;
        // SAFETY: the instruction only stores the register, into memory of its size.
        unsafe {
            asm!(
                "stmxcsr [{}]",
                in(reg) &raw mut mxcsr,
                options(nostack, preserves_flags)
            );
        }
        Self(mxcsr & !Self::HAPPENED)
    }

    /// Skips a register that already holds the value, because loading it is expensive.
    fn write(&self) {
        if *self != Self::read() {
            // SAFETY: the register held the value before. Its status bits are clear, so no trap
            // follows.
            unsafe {
                asm!(
                    "ldmxcsr [{}]",
                    in(reg) &raw const self.0,
                    options(nostack, preserves_flags)
                );
            }
        }
    }
}

#[cfg(target_arch = "aarch64")]
#[derive(PartialEq)]
struct Control(u64);

#[cfg(target_arch = "aarch64")]
impl Control {
    fn read() -> Self {
        let fpcr;
        // SAFETY: the instruction only reads a register.
        unsafe { asm!("mrs {}, fpcr", out(reg) fpcr, options(nomem, nostack, preserves_flags)) };
        Self(fpcr)
    }

    fn write(&self) {
        if *self != Self::read() {
            // SAFETY: this register held the value before.
            unsafe { asm!("msr fpcr, {}", in(reg) self.0, options(nostack, preserves_flags)) };
        }
    }
}

/// On other architectures nothing is restored.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
struct Control;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
impl Control {
    fn read() -> Self {
        Self
    }

    fn write(&self) {}
}

#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests {
    use super::*;
    use crate::testing::Fixture;
    use crate::{Batch, Ctx, Inputs, Mask, PluginError, testing};

    /// Rounds up and flushes denormals to zero, as `fesetround` and `-ffast-math` do.
    fn meddle() {
        Control(0x1f80 | 0x4000 | 0x8040).write();
    }

    fn third() -> [f32; 2] {
        [(1.0, 3.0), (1e-39, 2.0)].map(|(a, b)| std::hint::black_box(a) / std::hint::black_box(b))
    }

    /// A mask that changes these settings in every method.
    #[crate::keys]
    struct Meddler {}

    impl Mask for Meddler {
        fn mask(&mut self, _: &mut Ctx, _: &Batch, _: &mut [u8]) -> Result<(), PluginError> {
            meddle();
            Ok(())
        }

        fn step_end(
            &mut self,
            _: &mut Ctx,
            _: &Batch,
            _: &[u8],
            _: bool,
        ) -> Result<(), PluginError> {
            meddle();
            Err("and gives up".into())
        }

        fn inputs(&self) -> Inputs {
            meddle();
            Inputs::NONE
        }

        fn save(&self) -> Result<Vec<u8>, PluginError> {
            meddle();
            Ok(Vec::new())
        }

        fn load(&mut self, _: &[u8]) -> Result<(), PluginError> {
            meddle();
            panic!("in the middle")
        }
    }

    impl Drop for Meddler {
        fn drop(&mut self) {
            meddle();
        }
    }

    #[test]
    fn arithmetic_is_as_before_after_every_kind_of_call() {
        let right = third();
        let same = |call: &str| assert_eq!(third(), right, "{call}");
        let mut mask = keeping_arithmetic(|| testing::mask::<Meddler>("")).unwrap();
        same("create");
        let fixture = Fixture::new(1, 2);
        fixture.mask(&mut mask).unwrap();
        same("mask");
        fixture.step_end(&mut mask, &[1, 1], true).unwrap_err();
        same("step_end");
        mask.save().unwrap();
        same("save");
        mask.load(&[]).unwrap_err();
        same("load");
        drop(mask);
        same("drop");
        // The host answers in the middle of a call.
        let host = Arithmetic::now();
        let (answered, inside) = keeping_arithmetic(|| {
            meddle();
            (host.during(third), third())
        });
        assert_eq!(answered, right);
        assert_ne!(inside, right, "or else nothing was tried");
    }
}
