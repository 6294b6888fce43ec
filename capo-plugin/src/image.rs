//! The host's view of an image: its components and recipes, reached through one function pointer.
//! Plugins and the executable answer through the same function, so a host needs only one registry.

use abi_stable::StableAbi;
use abi_stable::std_types::{ROption, RStr};

use crate::wire::{
    AdvantageBox, ComponentInfo, EnvironmentBox, MaskBox, ObjectiveBox, PluginRoot_Ref, PointList,
    RECIPES, RecipeInfo, RecipeList, RewardBox, StepControlBox, WeightBox,
};
use crate::{Component, PluginError, Point, WireObject};

/// An executable or a loaded library.
#[derive(Clone, Copy)]
pub struct Image {
    root: PluginRoot_Ref,
}

/// A question fails where the image compiled another layout under its extension id: the
/// differences, as abi_stable prints them.
impl Image {
    /// The image of a loaded library.
    pub fn from_root(root: PluginRoot_Ref) -> Self {
        Self { root }
    }

    /// Revision of the image's root.
    pub fn abi_version(&self) -> u32 {
        self.root.abi_version()
    }

    /// The image's extension `id`, or `None` when the image does not know it.
    pub fn extension<T: StableAbi + 'static>(
        &self,
        id: &str,
    ) -> Result<Option<&'static T>, String> {
        match self.root.extension()(RStr::from_str(id)) {
            ROption::RNone => Ok(None),
            ROption::RSome(extension) => extension.get::<T>().map(Some),
        }
    }

    /// Recipes of this image.
    pub fn recipes(&self) -> Result<Vec<RecipeInfo>, String> {
        Ok(self
            .extension::<RecipeList>(RECIPES)?
            .map(|list| (list.recipes)().into_vec())
            .unwrap_or_default())
    }

    /// Components that the image offers at `point`; empty where it does not know the point.
    pub fn components(&self, point: Point) -> Result<Vec<ComponentInfo>, String> {
        match point {
            Point::Environment => self.list::<EnvironmentBox>(),
            Point::Reward => self.list::<RewardBox>(),
            Point::Advantage => self.list::<AdvantageBox>(),
            Point::Objective => self.list::<ObjectiveBox>(),
            Point::Mask => self.list::<MaskBox>(),
            Point::Weight => self.list::<WeightBox>(),
            Point::StepControl => self.list::<StepControlBox>(),
        }
    }

    fn list<W: WireObject>(&self) -> Result<Vec<ComponentInfo>, String> {
        let list = self.extension::<PointList<W>>(W::POINT.extension_id())?;
        Ok(list
            .map(|list| (list.components)().into_vec())
            .unwrap_or_default())
    }

    /// Description of component `id` at `point`, if the image offers it.
    pub fn component(&self, point: Point, id: &str) -> Result<Option<ComponentInfo>, String> {
        Ok(self
            .components(point)?
            .into_iter()
            .find(|component| component.id == id))
    }

    /// Builds component `id` of the point of `W` from its table, written as JSON text.
    ///
    /// # Errors
    ///
    /// When the image has no such component, or the component refuses its table.
    pub fn create<W: WireObject>(&self, id: &str, json: &str) -> Result<Component<W>, PluginError> {
        let point = W::POINT.extension_id();
        let Some(list) = self.extension::<PointList<W>>(point)? else {
            return Err(PluginError::unsupported(format!(
                "the image has no extension `{point}`"
            )));
        };
        let wire = (list.create)(RStr::from_str(id), RStr::from_str(json)).into_result();
        Ok(Component::new(id, wire?))
    }
}
