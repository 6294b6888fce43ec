//! Capabilities found by id. With them both sides of the ABI grow without changes to a frozen type.

use std::marker::PhantomData;

use abi_stable::StableAbi;
use abi_stable::abi_stability::abi_checking::check_layout_compatibility;
use abi_stable::type_layout::TypeLayout;

/// A pointer to the value behind an extension id, with the type layout that its owner compiled.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct Extension<'a> {
    layout: &'static TypeLayout,
    value: *const (),
    lifetime: PhantomData<&'a ()>,
}

impl<'a> Extension<'a> {
    /// Wraps `value` with its layout. A layout knows no lifetimes, so a type that borrows could be
    /// read as one that borrows longer:
    ///
    /// ```compile_fail
    /// fn lend(text: &u32) {
    ///     capo_plugin::Extension::of(&text);
    /// }
    /// ```
    pub fn of<T: StableAbi + 'static>(value: &'a T) -> Self {
        Self {
            layout: T::LAYOUT,
            value: (value as *const T).cast(),
            lifetime: PhantomData,
        }
    }

    /// Reads the value as a `T`.
    ///
    /// # Errors
    ///
    /// When the owner's layout differs from this image's `T`: the differences, as abi_stable prints
    /// them.
    pub fn get<T: StableAbi + 'static>(&self) -> Result<&'a T, String> {
        check_layout_compatibility(T::LAYOUT, self.layout).map_err(|errors| errors.to_string())?;
        // SAFETY: `of` stored a `&'a U`, and the check above found U's layout compatible with `T`.
        Ok(unsafe { &*self.value.cast::<T>() })
    }
}
