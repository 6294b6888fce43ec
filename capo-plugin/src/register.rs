//! Registration of components and recipes: `register!` and `recipe!` in a plugin, `builtin` crates
//! in a host.

use std::any::Any;

use serde::de::DeserializeOwned;

use crate::{KeyDocs, PluginError, Point, known_keys};

/// One registered component of this image. Each point has a constructor with the name of its trait,
/// for [`register!`].
#[doc(hidden)]
pub struct Entry {
    pub(crate) point: Point,
    pub(crate) make: Make,
    pub(crate) id: &'static str,
    pub(crate) about: &'static str,
    pub(crate) package: &'static str,
    pub(crate) version: &'static str,
    pub(crate) keys: fn() -> Option<&'static [&'static str]>,
    pub(crate) docs: KeyDocs,
}

/// Builds a component's object on the wire from its table as JSON text.
pub(crate) type Make = fn(&str) -> Result<Box<dyn Any>, PluginError>;

/// Names from the macro: id, about, package, version.
pub(crate) type Names = [&'static str; 4];

impl Entry {
    pub(crate) const fn new<T: DeserializeOwned>(
        point: Point,
        make: Make,
        names: Names,
        docs: KeyDocs,
    ) -> Self {
        let [id, about, package, version] = names;
        Self {
            point,
            make,
            id,
            about,
            package,
            version,
            keys: known_keys::<T>,
            docs,
        }
    }
}

/// One registered recipe of this image.
#[doc(hidden)]
pub struct Recipe {
    pub name: &'static str,
    pub about: &'static str,
    pub toml: &'static str,
    pub package: &'static str,
}

inventory::collect!(Entry);
inventory::collect!(Recipe);

/// Registers a component: `register!(Mask, Type, "vendor.kebab-name", "what it does")`.
///
/// The first word is the trait that `Type` implements: [`Environment`](crate::Environment),
/// [`Reward`](crate::Reward), [`Advantage`](crate::Advantage), [`Objective`](crate::Objective),
/// [`Mask`](crate::Mask), [`Weight`](crate::Weight) or [`StepControl`](crate::StepControl). `Type`
/// also implements `serde::Deserialize`: its table in a config becomes the component.
///
/// The last argument gives the meanings of the table's keys, for `host plugins --verbose`: a list
/// as in [`keys!`](crate::keys), in braces, or a [`KeyDocs`](crate::KeyDocs). It must cover every
/// key that `Type` reads, and no other
/// ([`testing::check_key_docs`](crate::testing::check_key_docs)).
///
/// ```
/// # use capo_plugin::prelude::*;
/// # #[derive(Deserialize)]
/// # struct SurpriseCap {
/// #     max_nats: f32,
/// #     #[serde(default = "warm_up")]
/// #     warm_up: u64,
/// # }
/// # fn warm_up() -> u64 {
/// #     10
/// # }
/// # impl Mask for SurpriseCap {
/// #     fn mask(&mut self, _: &mut Ctx, _: &Batch, _: &mut [u8]) -> Result<(), PluginError> {
/// #         Ok(())
/// #     }
/// # }
/// register!(Mask, SurpriseCap, "acme.surprise-cap", "drops tokens above a surprise limit", {
///     max_nats => "largest `-logp` kept, nats",
///     warm_up = warm_up() => "steps that keep all",
/// });
/// # fn main() {
/// #     capo_plugin::testing::check_key_docs().unwrap();
/// # }
/// ```
#[macro_export]
macro_rules! register {
    ($trait:ident, $type:ty, $id:expr, $about:expr $(,)?) => {
        $crate::register!($trait, $type, $id, $about, $crate::KeyDocs::NONE);
    };
    ($trait:ident, $type:ty, $id:expr, $about:expr, { $($keys:tt)* } $(,)?) => {
        $crate::register!($trait, $type, $id, $about, $crate::keys! { $($keys)* });
    };
    ($trait:ident, $type:ty, $id:expr, $about:expr, $docs:expr $(,)?) => {
        $crate::__private::inventory::submit! {
            $crate::__private::Entry::$trait::<$type>(
                [$id, $about, ::core::env!("CARGO_PKG_NAME"), ::core::env!("CARGO_PKG_VERSION")],
                $docs,
            )
        }
    };
}

/// Registers a recipe: `recipe!("name", "what it is", include_str!("recipe.toml"))`. `--plugin`
/// alone then selects it.
///
/// The text holds `[advantage]`, `[objective]` and any number of `[[mask]]`, `[[weight]]` and
/// `[[step_control]]`, as a configuration would. It may also set `[train]`, `[rollout]` and
/// `[[reward]]` for keys that the user did not set.
#[macro_export]
macro_rules! recipe {
    ($name:expr, $about:expr, $toml:expr $(,)?) => {
        $crate::__private::inventory::submit! {
            $crate::__private::Recipe {
                name: $name,
                about: $about,
                toml: $toml,
                package: ::core::env!("CARGO_PKG_NAME"),
            }
        }
    };
}
