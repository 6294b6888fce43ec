//! The check that a library can be loaded, because cudarc panics over one that is missing.

#![allow(unsafe_code, reason = "loading a library runs its code")]

use libloading::Library;

/// True if a library of one of these names can be loaded.
pub fn is_present(names: &[&str]) -> bool {
    names.iter().any(|name| {
        // SAFETY: the initialisers of CUDA's libraries are sound to run at any time. The library is
        // never unloaded, because cudarc uses it.
        unsafe { Library::new(*name) }.map(std::mem::forget).is_ok()
    })
}
