//! What this image answers when it is asked: its components, how they are built, and what is said of them.

use abi_stable::std_types::{ROption, RResult, RStr, RVec};

use crate::abi::{
    ADVANTAGE_POINT, AdvantageBox, AdvantagePoint, ComponentInfo, MASK_POINT, MaskBox, MaskPoint, OBJECTIVE_POINT,
    ObjectiveBox, ObjectivePoint, PluginRoot_Ref, RECIPE_POINT, RecipePoint, WireError, leak_root,
};
use crate::abi_keys::{KEYS_POINT, KeysPoint};
use crate::abi_recipe::{RECIPE_POINT_2, RecipePoint2};
use crate::abi_reward::{REWARD_POINT, RewardBox, RewardPoint};
use crate::abi_step_control::{STEP_CONTROL_POINT, StepControlBox, StepControlPoint};
use crate::abi_sweep::{SWEEP_POINT, SweepPoint};
use crate::abi_traits::{TRAITS_POINT, TraitsPoint};
use crate::abi_weight::{WEIGHT_POINT, WeightBox, WeightPoint};
use crate::described::{describe, keys_of, ranges, traits};
use crate::error::PluginError;
use crate::extension::Extension;
use crate::point::Point;
use crate::recipe::{recipes, recipes_with_settings};
use crate::register::{Entry, Make};

pub(crate) fn own_root() -> PluginRoot_Ref {
    static ROOT: std::sync::OnceLock<PluginRoot_Ref> = std::sync::OnceLock::new();
    *ROOT.get_or_init(|| leak_root(own_extension))
}

pub(crate) extern "C" fn own_extension(id: RStr<'_>) -> ROption<Extension<'static>> {
    static REWARD: RewardPoint = RewardPoint { components: rewards, create: create_reward };
    static ADVANTAGE: AdvantagePoint = AdvantagePoint { components: advantages, create: create_advantage };
    static OBJECTIVE: ObjectivePoint = ObjectivePoint { components: objectives, create: create_objective };
    static MASK: MaskPoint = MaskPoint { components: masks, create: create_mask };
    static WEIGHT: WeightPoint = WeightPoint { components: weights, create: create_weight };
    static STEP_CONTROL: StepControlPoint = StepControlPoint { components: step_controls, create: create_step_control };
    static RECIPE: RecipePoint = RecipePoint { recipes };
    static KEYS: KeysPoint = KeysPoint { describe };
    static SWEEP: SweepPoint = SweepPoint { ranges };
    static TRAITS: TraitsPoint = TraitsPoint { traits };
    static RECIPE_2: RecipePoint2 = RecipePoint2 { recipes: recipes_with_settings };
    match id.as_str() {
        REWARD_POINT => ROption::RSome(Extension::of(&REWARD)),
        ADVANTAGE_POINT => ROption::RSome(Extension::of(&ADVANTAGE)),
        OBJECTIVE_POINT => ROption::RSome(Extension::of(&OBJECTIVE)),
        MASK_POINT => ROption::RSome(Extension::of(&MASK)),
        WEIGHT_POINT => ROption::RSome(Extension::of(&WEIGHT)),
        STEP_CONTROL_POINT => ROption::RSome(Extension::of(&STEP_CONTROL)),
        RECIPE_POINT => ROption::RSome(Extension::of(&RECIPE)),
        KEYS_POINT => ROption::RSome(Extension::of(&KEYS)),
        SWEEP_POINT => ROption::RSome(Extension::of(&SWEEP)),
        TRAITS_POINT => ROption::RSome(Extension::of(&TRAITS)),
        RECIPE_POINT_2 => ROption::RSome(Extension::of(&RECIPE_2)),
        _ => ROption::RNone,
    }
}

fn infos(point: Point) -> RVec<ComponentInfo> {
    let entries = inventory::iter::<Entry>.into_iter().filter(|entry| entry.make.point() == point);
    entries
        .map(|entry| ComponentInfo {
            id: entry.id.into(),
            about: entry.about.into(),
            package: entry.package.into(),
            version: entry.version.into(),
            keys: keys_of(entry),
        })
        .collect()
}

extern "C" fn rewards() -> RVec<ComponentInfo> {
    infos(Point::Reward)
}

extern "C" fn advantages() -> RVec<ComponentInfo> {
    infos(Point::Advantage)
}

extern "C" fn objectives() -> RVec<ComponentInfo> {
    infos(Point::Objective)
}

extern "C" fn masks() -> RVec<ComponentInfo> {
    infos(Point::Mask)
}

extern "C" fn weights() -> RVec<ComponentInfo> {
    infos(Point::Weight)
}

extern "C" fn step_controls() -> RVec<ComponentInfo> {
    infos(Point::StepControl)
}

/// Builds a component from its table, written as JSON text.
type Build<B> = fn(&str) -> Result<B, PluginError>;

fn create<B>(id: RStr<'_>, config: RStr<'_>, pick: fn(Make) -> Option<Build<B>>) -> RResult<B, WireError> {
    let found =
        inventory::iter::<Entry>.into_iter().find_map(|entry| pick(entry.make).filter(|_| entry.id == id.as_str()));
    let built = match found {
        Some(make) => make(config.as_str()),
        None => Err(PluginError::config(format!("the image has no component `{id}` at this point"))),
    };
    built.map_err(WireError::from).into()
}

extern "C" fn create_reward(id: RStr<'_>, config: RStr<'_>) -> RResult<RewardBox, WireError> {
    create(id, config, |make| if let Make::Reward(make) = make { Some(make) } else { None })
}

extern "C" fn create_advantage(id: RStr<'_>, config: RStr<'_>) -> RResult<AdvantageBox, WireError> {
    create(id, config, |make| if let Make::Advantage(make) = make { Some(make) } else { None })
}

extern "C" fn create_objective(id: RStr<'_>, config: RStr<'_>) -> RResult<ObjectiveBox, WireError> {
    create(id, config, |make| if let Make::Objective(make) = make { Some(make) } else { None })
}

extern "C" fn create_mask(id: RStr<'_>, config: RStr<'_>) -> RResult<MaskBox, WireError> {
    create(id, config, |make| if let Make::Mask(make) = make { Some(make) } else { None })
}

extern "C" fn create_weight(id: RStr<'_>, config: RStr<'_>) -> RResult<WeightBox, WireError> {
    create(id, config, |make| if let Make::Weight(make) = make { Some(make) } else { None })
}

extern "C" fn create_step_control(id: RStr<'_>, config: RStr<'_>) -> RResult<StepControlBox, WireError> {
    create(id, config, |make| if let Make::StepControl(make) = make { Some(make) } else { None })
}
