//! The host's view of an image: its components and recipes, asked for through one function pointer. A plugin's root and
//! the executable's own answer alike, so that a host has one registry with two doors.

use abi_stable::std_types::{ROption, RStr, RVec};

use crate::abi::{
    AdvantagePoint, ComponentInfo, MaskPoint, ObjectivePoint, PluginRoot_Ref, RECIPE_POINT, RecipeInfo, RecipePoint,
};
use crate::abi_keys::{KEYS_POINT, KeyInfo, KeysPoint};
use crate::abi_recipe::{RECIPE_POINT_2, RecipePoint2};
use crate::abi_reward::RewardPoint;
use crate::abi_step_control::StepControlPoint;
use crate::abi_sweep::{SWEEP_POINT, SweepPoint, SweepRange};
use crate::abi_traits::{MaskTraits, TRAITS_POINT, TraitsPoint};
use crate::abi_weight::WeightPoint;
pub(crate) use crate::answers::own_root;
use crate::component::{Advantage, Mask, ObjectiveFn, RewardFn, Weight};
use crate::controller::StepControlFn;
use crate::error::PluginError;
use crate::keys;
use crate::point::Point;

/// An executable or a loaded library.
#[derive(Clone, Copy)]
pub struct Image {
    root: PluginRoot_Ref,
}

impl Image {
    /// The image that this code was linked into.
    #[must_use]
    pub fn own() -> Self {
        Self { root: own_root() }
    }

    /// A loaded library's image.
    #[must_use]
    pub fn from_root(root: PluginRoot_Ref) -> Self {
        Self { root }
    }

    /// The revision of its root module.
    #[must_use]
    pub fn abi_version(&self) -> u32 {
        self.root.abi_version()
    }

    /// What lies behind extension `id`, or none when the image does not know it.
    ///
    /// # Errors
    ///
    /// When the image compiled another layout under this id: the differences, as abi_stable prints them.
    pub fn extension<T: abi_stable::StableAbi>(&self, id: &str) -> Result<Option<&'static T>, String> {
        match self.root.extension()(RStr::from_str(id)) {
            ROption::RNone => Ok(None),
            ROption::RSome(extension) => extension.get::<T>().map(Some),
        }
    }

    /// The components that it offers at `point`; empty where it does not know the point.
    ///
    /// # Errors
    ///
    /// When the image compiled another layout under the point's id.
    pub fn components(&self, point: Point) -> Result<Vec<ComponentInfo>, String> {
        let id = point.extension_id();
        let list = match point {
            Point::Reward => self.extension::<RewardPoint>(id)?.map(|point| (point.components)()),
            Point::Advantage => self.extension::<AdvantagePoint>(id)?.map(|point| (point.components)()),
            Point::Objective => self.extension::<ObjectivePoint>(id)?.map(|point| (point.components)()),
            Point::Mask => self.extension::<MaskPoint>(id)?.map(|point| (point.components)()),
            Point::Weight => self.extension::<WeightPoint>(id)?.map(|point| (point.components)()),
            Point::StepControl => self.extension::<StepControlPoint>(id)?.map(|point| (point.components)()),
        };
        Ok(list.map(RVec::into_vec).unwrap_or_default())
    }

    /// What the keys of component `id` at `point` mean, in the order of its author; empty where nothing was said, or the image
    /// was built before that could be.
    ///
    /// # Errors
    ///
    /// When the image compiled another layout under [`KEYS_POINT`].
    pub fn key_docs(&self, point: Point, id: &str) -> Result<Vec<KeyInfo>, String> {
        let describe = |keys: &KeysPoint| (keys.describe)(RStr::from_str(point.extension_id()), RStr::from_str(id));
        Ok(self.extension::<KeysPoint>(KEYS_POINT)?.map(describe).map(RVec::into_vec).unwrap_or_default())
    }

    /// The keys of component `id` at `point` for which a search makes sense, in the order of its author; empty where nothing was said,
    /// or the image was built before that could be.
    ///
    /// # Errors
    ///
    /// When the image compiled another layout under [`SWEEP_POINT`].
    pub fn sweeps(&self, point: Point, id: &str) -> Result<Vec<SweepRange>, String> {
        let ranges = |sweep: &SweepPoint| (sweep.ranges)(RStr::from_str(point.extension_id()), RStr::from_str(id));
        Ok(self.extension::<SweepPoint>(SWEEP_POINT)?.map(ranges).map(RVec::into_vec).unwrap_or_default())
    }

    /// What component `id` at `point`, built from its table, written as JSON text, declares of its decisions; nothing where the image was
    /// built before that could be.
    ///
    /// # Errors
    ///
    /// When the component refuses its table, or the image compiled another layout under [`TRAITS_POINT`].
    pub fn mask_traits(&self, point: Point, id: &str, json: &str) -> Result<MaskTraits, PluginError> {
        let Some(extension) = self.extension::<TraitsPoint>(TRAITS_POINT)? else { return Ok(MaskTraits::NONE) };
        let [point, id, json] = [point.extension_id(), id, json].map(RStr::from_str);
        (extension.traits)(point, id, json).into_result().map_err(PluginError::from)
    }

    /// Whether the descriptions of the keys of component `id` at `point`, where there are any, are of exactly the keys that it
    /// reads, and their ranges of numbers.
    ///
    /// # Errors
    ///
    /// The first key that is described and not read, read and not described, described twice or without words, or whose range is none.
    pub fn check_key_docs(&self, point: Point, id: &str) -> Result<(), String> {
        let docs = self.key_docs(point, id)?;
        let components = self.components(point)?;
        let read = components.iter().filter(|component| component.id == id).flat_map(|component| &component.keys);
        keys::check(&docs, &read.map(|key| key.as_str()).collect::<Vec<_>>())?;
        keys::check_ranges(&docs, &self.sweeps(point, id)?)
    }

    /// The recipes of components alone that it carries.
    ///
    /// # Errors
    ///
    /// When the image compiled another layout under the recipes' id.
    pub fn recipes(&self) -> Result<Vec<RecipeInfo>, String> {
        Ok(self.extension::<RecipePoint>(RECIPE_POINT)?.map(|point| (point.recipes)().into_vec()).unwrap_or_default())
    }

    /// The recipes with settings beside their components that it carries.
    ///
    /// # Errors
    ///
    /// When the image compiled another layout under their id.
    pub fn recipes_with_settings(&self) -> Result<Vec<RecipeInfo>, String> {
        let point = self.extension::<RecipePoint2>(RECIPE_POINT_2)?;
        Ok(point.map(|point| (point.recipes)().into_vec()).unwrap_or_default())
    }

    /// Builds reward `id` from its table, written as JSON text.
    ///
    /// # Errors
    ///
    /// When the image has no such component, or the component refuses its table.
    pub fn reward(&self, id: &str, json: &str) -> Result<RewardFn, PluginError> {
        let point = self.point::<RewardPoint>(Point::Reward)?;
        let wire = (point.create)(RStr::from_str(id), RStr::from_str(json)).into_result();
        wire.map(|wire| RewardFn::new(id, wire)).map_err(PluginError::from)
    }

    /// Builds advantage estimator `id` from its table, written as JSON text.
    ///
    /// # Errors
    ///
    /// When the image has no such component, or the component refuses its table.
    pub fn advantage(&self, id: &str, json: &str) -> Result<Advantage, PluginError> {
        let point = self.point::<AdvantagePoint>(Point::Advantage)?;
        let wire = (point.create)(RStr::from_str(id), RStr::from_str(json)).into_result();
        wire.map(|wire| Advantage::new(id, wire)).map_err(PluginError::from)
    }

    /// Builds objective `id` from its table, written as JSON text.
    ///
    /// # Errors
    ///
    /// When the image has no such component, or the component refuses its table.
    pub fn objective(&self, id: &str, json: &str) -> Result<ObjectiveFn, PluginError> {
        let point = self.point::<ObjectivePoint>(Point::Objective)?;
        let wire = (point.create)(RStr::from_str(id), RStr::from_str(json)).into_result();
        wire.map(|wire| ObjectiveFn::new(id, wire)).map_err(PluginError::from)
    }

    /// Builds mask `id` from its table, written as JSON text.
    ///
    /// # Errors
    ///
    /// When the image has no such component, or the component refuses its table.
    pub fn mask(&self, id: &str, json: &str) -> Result<Mask, PluginError> {
        let point = self.point::<MaskPoint>(Point::Mask)?;
        let wire = (point.create)(RStr::from_str(id), RStr::from_str(json)).into_result();
        wire.map(|wire| Mask::new(id, wire)).map_err(PluginError::from)
    }

    /// Builds weight `id` from its table, written as JSON text.
    ///
    /// # Errors
    ///
    /// When the image has no such component, or the component refuses its table.
    pub fn weight(&self, id: &str, json: &str) -> Result<Weight, PluginError> {
        let point = self.point::<WeightPoint>(Point::Weight)?;
        let wire = (point.create)(RStr::from_str(id), RStr::from_str(json)).into_result();
        wire.map(|wire| Weight::new(id, wire)).map_err(PluginError::from)
    }

    /// Builds step control `id` from its table, written as JSON text.
    ///
    /// # Errors
    ///
    /// When the image has no such component, or the component refuses its table.
    pub fn step_control(&self, id: &str, json: &str) -> Result<StepControlFn, PluginError> {
        let point = self.point::<StepControlPoint>(Point::StepControl)?;
        let wire = (point.create)(RStr::from_str(id), RStr::from_str(json)).into_result();
        wire.map(|wire| StepControlFn::new(id, wire)).map_err(PluginError::from)
    }

    fn point<T: abi_stable::StableAbi>(&self, point: Point) -> Result<&'static T, PluginError> {
        let id = point.extension_id();
        self.extension::<T>(id)?.ok_or_else(|| PluginError::unsupported(format!("the image has no extension `{id}`")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::leak_root;
    use crate::answers::own_extension;
    use crate::extension::Extension;
    use crate::recipe::recipes;

    /// An image from before keys could be described, and decisions declared.
    extern "C" fn older(id: RStr<'_>) -> ROption<Extension<'static>> {
        if [KEYS_POINT, SWEEP_POINT, TRAITS_POINT].contains(&id.as_str()) { ROption::RNone } else { own_extension(id) }
    }

    /// An image whose owner compiled something else under the ids.
    extern "C" fn another(id: RStr<'_>) -> ROption<Extension<'static>> {
        static RECIPE: RecipePoint = RecipePoint { recipes };
        let changed = [KEYS_POINT, SWEEP_POINT, TRAITS_POINT].contains(&id.as_str());
        if changed { ROption::RSome(Extension::of(&RECIPE)) } else { own_extension(id) }
    }

    #[test]
    fn an_image_may_know_nothing_of_descriptions_but_not_something_else() {
        let ask = |extension| Image::from_root(leak_root(extension));
        assert_eq!(ask(older).key_docs(Point::Mask, "test.mask"), Ok(Vec::new()));
        assert_eq!(ask(older).sweeps(Point::Mask, "test.mask"), Ok(Vec::new()));
        assert_eq!(ask(older).mask_traits(Point::Mask, "test.mask", "{}").unwrap(), MaskTraits::NONE);
        let differences = ask(another).key_docs(Point::Mask, "test.mask").unwrap_err();
        assert!(differences.contains("describe"), "{differences}");
        let differences = ask(another).sweeps(Point::Mask, "test.mask").unwrap_err();
        assert!(differences.contains("ranges"), "{differences}");
        let error = ask(another).mask_traits(Point::Mask, "test.mask", "{}").unwrap_err();
        assert!(error.to_string().contains("traits"), "{error}");
    }

    #[test]
    fn the_header_symbol_is_the_one_that_loaders_look_for() {
        let source = include_str!("abi.rs");
        let name = abi_stable::library::ROOT_MODULE_LOADER_NAME;
        assert!(source.contains(&format!("export_name = \"{name}\"")), "abi_stable looks for `{name}`");
    }
}
