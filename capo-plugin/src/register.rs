//! Offering components and recipes: `register!` and `recipe!` in a plugin, `builtin` crates in a host.

use serde::de::DeserializeOwned;

use crate::abi::{AdvantageBox, MaskBox, ObjectiveBox};
use crate::abi_reward::RewardBox;
use crate::config::known_keys;
use crate::error::PluginError;
use crate::guard;
use crate::points::{AdvantageEstimator, Objective, PreBackwardMask, Reward};

/// One registered component of this image.
#[doc(hidden)]
pub struct Entry {
    pub(crate) make: Make,
    pub(crate) id: &'static str,
    pub(crate) about: &'static str,
    pub(crate) package: &'static str,
    pub(crate) version: &'static str,
    pub(crate) keys: fn() -> Option<&'static [&'static str]>,
}

/// How to build it, by extension point.
#[derive(Clone, Copy)]
pub(crate) enum Make {
    Reward(fn(&str) -> Result<RewardBox, PluginError>),
    Advantage(fn(&str) -> Result<AdvantageBox, PluginError>),
    Objective(fn(&str) -> Result<ObjectiveBox, PluginError>),
    Mask(fn(&str) -> Result<MaskBox, PluginError>),
}

/// Names, as the macro hands them over: id, about, package, version.
type Names = [&'static str; 4];

impl Entry {
    const fn new(make: Make, names: Names, keys: fn() -> Option<&'static [&'static str]>) -> Self {
        let [id, about, package, version] = names;
        Self { make, id, about, package, version, keys }
    }

    /// An entry at the reward point.
    #[must_use]
    pub const fn reward<T: Reward + DeserializeOwned + 'static>(names: Names) -> Self {
        Self::new(Make::Reward(guard::reward::<T>), names, known_keys::<T>)
    }

    /// An entry at the advantage point.
    #[must_use]
    pub const fn advantage_estimator<T: AdvantageEstimator + DeserializeOwned + 'static>(names: Names) -> Self {
        Self::new(Make::Advantage(guard::advantage::<T>), names, known_keys::<T>)
    }

    /// An entry at the objective point.
    #[must_use]
    pub const fn objective<T: Objective + DeserializeOwned + 'static>(names: Names) -> Self {
        Self::new(Make::Objective(guard::objective::<T>), names, known_keys::<T>)
    }

    /// An entry at the mask point.
    #[must_use]
    pub const fn pre_backward_mask<T: PreBackwardMask + DeserializeOwned + 'static>(names: Names) -> Self {
        Self::new(Make::Mask(guard::mask::<T>), names, known_keys::<T>)
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

/// Offers a component: `register!(PreBackwardMask, Type, "vendor.kebab-name", "what it does")`.
///
/// The first word is the trait that `Type` implements: [`Reward`](crate::Reward),
/// [`AdvantageEstimator`](crate::AdvantageEstimator), [`Objective`](crate::Objective) or
/// [`PreBackwardMask`](crate::PreBackwardMask). `Type` also implements `serde::Deserialize`: its table in a config becomes
/// the component.
#[macro_export]
macro_rules! register {
    (Reward, $type:ty, $id:expr, $about:expr $(,)?) => {
        $crate::__register!(reward, $type, $id, $about);
    };
    (AdvantageEstimator, $type:ty, $id:expr, $about:expr $(,)?) => {
        $crate::__register!(advantage_estimator, $type, $id, $about);
    };
    (Objective, $type:ty, $id:expr, $about:expr $(,)?) => {
        $crate::__register!(objective, $type, $id, $about);
    };
    (PreBackwardMask, $type:ty, $id:expr, $about:expr $(,)?) => {
        $crate::__register!(pre_backward_mask, $type, $id, $about);
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __register {
    ($point:ident, $type:ty, $id:expr, $about:expr) => {
        $crate::__private::inventory::submit! {
            $crate::__private::Entry::$point::<$type>(
                [$id, $about, ::core::env!("CARGO_PKG_NAME"), ::core::env!("CARGO_PKG_VERSION")]
            )
        }
    };
}

/// Offers a recipe: `recipe!("name", "what it is", include_str!("recipe.toml"))`, so that `--plugin` alone selects it.
///
/// The text holds `[advantage]`, `[objective]` and any number of `[[mask]]`, as a config would. It may also hold `[train]`, `[rollout]`
/// and `[[reward]]`: values for keys that the run's user did not set, which hosts before `capo.recipe/2` do not list.
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
