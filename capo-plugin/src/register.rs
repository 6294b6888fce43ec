//! Registration of components and recipes: `register!` and `recipe!` in a plugin, `builtin` crates
//! in a host.

use std::any::Any;

use crate::wire::KeyDoc;
use crate::{Keys, PluginError, Point};

/// One registered component of this image. Each point has a constructor with the name of its trait,
/// for [`register!`].
#[doc(hidden)]
pub struct Entry {
    pub(crate) point: Point,
    pub(crate) make: Make,
    pub(crate) keys: fn() -> Vec<KeyDoc>,
    pub(crate) name: Name,
}

/// Builds a component's object on the wire from its table as JSON text.
pub(crate) type Make = fn(&str) -> Result<Box<dyn Any>, PluginError>;

/// Texts about a component, from the macro.
#[doc(hidden)]
pub struct Name {
    pub id: &'static str,
    pub about: &'static str,
    pub package: &'static str,
    pub version: &'static str,
}

impl Entry {
    pub(crate) const fn new<T: Keys>(point: Point, make: Make, name: Name) -> Self {
        Self {
            point,
            make,
            keys: T::keys,
            name,
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

/// Registers a component: `register!(Mask, Type, "vendor.kebab-name", "What it does.")`.
///
/// [`component`](macro@crate::component) does it for one struct with one id. This macro is for a
/// generic struct, and for a type that several ids share. The first word is the trait that `Type`
/// implements: [`Environment`](crate::Environment), [`Reward`](crate::Reward),
/// [`Advantage`](crate::Advantage), [`Objective`](crate::Objective), [`Mask`](crate::Mask),
/// [`Weight`](crate::Weight) or [`StepControl`](crate::StepControl). `Type` also implements
/// [`Keys`](trait@crate::Keys), which has the keys. Without a last argument, the description is the
/// first paragraph of the struct's doc comment.
///
/// ```
/// # use capo_plugin::prelude::*;
/// trait Side: Send {
///     const DEFAULT: f32;
/// }
///
/// #[keys]
/// struct SurpriseCap<S: Side> {
///     /// Largest `-logp` that is kept, nats.
///     #[key(default = S::DEFAULT, above = 0)]
///     max_nats: f32,
///     side: std::marker::PhantomData<S>,
/// }
/// # impl<S: Side> Mask for SurpriseCap<S> {
/// #     fn mask(&mut self, _: &mut Ctx, _: &Batch, _: &mut [u8]) -> Result<(), PluginError> {
/// #         Ok(())
/// #     }
/// # }
///
/// struct Strict;
///
/// impl Side for Strict {
///     const DEFAULT: f32 = 2.0;
/// }
///
/// register!(Mask, SurpriseCap<Strict>, "acme.strict-cap", "Drops tokens above 2 nats.");
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! register {
    ($trait:ident, $type:ty, $id:expr $(,)?) => {
        $crate::register!($trait, $type, $id, <$type as $crate::Keys>::ABOUT);
    };
    ($trait:ident, $type:ty, $id:expr, $about:expr $(,)?) => {
        $crate::__private::inventory::submit! {
            $crate::__private::Entry::$trait::<$type>($crate::__private::Name {
                id: $id,
                about: $about,
                package: ::core::env!("CARGO_PKG_NAME"),
                version: ::core::env!("CARGO_PKG_VERSION"),
            })
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
