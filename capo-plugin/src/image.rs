//! The host's view of an image: its components and recipes, reached through one function pointer. Plugins and the
//! executable answer through the same function, so a host needs only one registry.

use abi_stable::StableAbi;
use abi_stable::std_types::{ROption, RStr, RVec};

use crate::abi::{
    AdvantageBox, ComponentInfo, MaskBox, ObjectiveBox, PluginRoot_Ref, RECIPE_POINT, RecipeInfo, RecipePoint,
};
use crate::abi_keys::{KEYS_POINT, KeyInfo, KeysPoint};
use crate::abi_recipe::{RECIPE_POINT_2, RecipePoint2};
use crate::abi_reward::RewardBox;
use crate::abi_step_control::StepControlBox;
use crate::abi_sweep::{SWEEP_POINT, SweepPoint, SweepRange};
use crate::abi_traits::{MaskTraits, TRAITS_POINT, TraitsPoint};
use crate::abi_weight::WeightBox;
use crate::{Component, PluginError, Point, Wired, keys};

/// An executable or a loaded library.
#[derive(Clone, Copy)]
pub struct Image {
    root: PluginRoot_Ref,
}

/// A question fails where the image compiled another layout under its extension id: the differences, as abi_stable prints them.
impl Image {
    /// The image of a loaded library.
    pub fn from_root(root: PluginRoot_Ref) -> Self {
        Self { root }
    }

    /// Revision of the image's root module.
    pub fn abi_version(&self) -> u32 {
        self.root.abi_version()
    }

    /// The image's extension `id`, or `None` when the image does not know it.
    pub fn extension<T: StableAbi>(&self, id: &str) -> Result<Option<&'static T>, String> {
        match self.root.extension()(RStr::from_str(id)) {
            ROption::RNone => Ok(None),
            ROption::RSome(extension) => extension.get::<T>().map(Some),
        }
    }

    /// Meanings of the keys of component `id` at `point`, in its author's order. Empty where the author gave none, or
    /// where the image is older than descriptions.
    pub fn key_docs(&self, point: Point, id: &str) -> Result<Vec<KeyInfo>, String> {
        let describe = |keys: &KeysPoint| (keys.describe)(RStr::from_str(point.extension_id()), RStr::from_str(id));
        Ok(self.extension::<KeysPoint>(KEYS_POINT)?.map(describe).map(RVec::into_vec).unwrap_or_default())
    }

    /// Search ranges for the keys of component `id` at `point`, in its author's order. Empty where the author gave
    /// none, or where the image is older than search ranges.
    pub fn sweeps(&self, point: Point, id: &str) -> Result<Vec<SweepRange>, String> {
        let ranges = |sweep: &SweepPoint| (sweep.ranges)(RStr::from_str(point.extension_id()), RStr::from_str(id));
        Ok(self.extension::<SweepPoint>(SWEEP_POINT)?.map(ranges).map(RVec::into_vec).unwrap_or_default())
    }

    /// Declarations of component `id` at `point` about its decisions; the component is built from its table as JSON
    /// text. `NONE` where the image is older than declarations.
    ///
    /// # Errors
    ///
    /// When the component refuses its table, or the image compiled another layout under [`TRAITS_POINT`].
    pub fn mask_traits(&self, point: Point, id: &str, json: &str) -> Result<MaskTraits, PluginError> {
        let Some(extension) = self.extension::<TraitsPoint>(TRAITS_POINT)? else { return Ok(MaskTraits::NONE) };
        let [point, id, json] = [point.extension_id(), id, json].map(RStr::from_str);
        (extension.traits)(point, id, json).into_result().map_err(PluginError::from)
    }

    /// Checks the descriptions of component `id` at `point`, where its author gave any. They must cover exactly the
    /// keys that the component reads, with valid ranges of numbers.
    ///
    /// # Errors
    ///
    /// The first faulty key: described but not read, read but not described, described twice or without text, or with
    /// an empty range.
    pub fn check_key_docs(&self, point: Point, id: &str) -> Result<(), String> {
        let docs = self.key_docs(point, id)?;
        let components = self.components(point)?;
        let read = components.iter().filter(|component| component.id == id).flat_map(|component| &component.keys);
        keys::check(&docs, &read.map(|key| key.as_str()).collect::<Vec<_>>())?;
        keys::check_ranges(&docs, &self.sweeps(point, id)?)
    }

    /// Recipes of this image that only choose an advantage, an objective and masks.
    pub fn recipes(&self) -> Result<Vec<RecipeInfo>, String> {
        Ok(self.extension::<RecipePoint>(RECIPE_POINT)?.map(|point| (point.recipes)().into_vec()).unwrap_or_default())
    }

    /// Recipes of this image with other sections too, such as `[train]` defaults or weights.
    pub fn recipes_with_settings(&self) -> Result<Vec<RecipeInfo>, String> {
        let point = self.extension::<RecipePoint2>(RECIPE_POINT_2)?;
        Ok(point.map(|point| (point.recipes)().into_vec()).unwrap_or_default())
    }

    /// Components that the image offers at `point`; empty where it does not know the point.
    pub fn components(&self, point: Point) -> Result<Vec<ComponentInfo>, String> {
        match point {
            Point::Reward => self.list::<RewardBox>(),
            Point::Advantage => self.list::<AdvantageBox>(),
            Point::Objective => self.list::<ObjectiveBox>(),
            Point::Mask => self.list::<MaskBox>(),
            Point::Weight => self.list::<WeightBox>(),
            Point::StepControl => self.list::<StepControlBox>(),
        }
    }

    fn list<W: Wired>(&self) -> Result<Vec<ComponentInfo>, String> {
        let list = self.extension::<W::List>(W::POINT.extension_id())?;
        Ok(list.map(|list| (W::doors(list).0)().into_vec()).unwrap_or_default())
    }

    /// Builds component `id` of the point of `W` from its table, written as JSON text.
    ///
    /// # Errors
    ///
    /// When the image has no such component, or the component refuses its table.
    pub fn create<W: Wired>(&self, id: &str, json: &str) -> Result<Component<W>, PluginError> {
        let point = W::POINT.extension_id();
        let Some(list) = self.extension::<W::List>(point)? else {
            return Err(PluginError::unsupported(format!("the image has no extension `{point}`")));
        };
        let wire = (W::doors(list).1)(RStr::from_str(id), RStr::from_str(json)).into_result();
        Ok(Component::new(id, wire?))
    }
}
