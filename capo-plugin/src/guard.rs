//! The plugin's side of the wire: one adapter that turns an author's component into a wire object, catches its panics
//! before they reach the ABI, and retires an instance that panicked.

use std::any::Any;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};

use abi_stable::sabi_trait::TD_Opaque;
use abi_stable::std_types::{RResult, RSlice, RSliceMut, RVec};
use serde::de::DeserializeOwned;

use crate::abi::{
    AdvantageBox, AdvantageWire, AdvantageWire_TO, HostRef, MaskBox, MaskWire, MaskWire_TO, ObjectiveBox,
    ObjectiveWire, ObjectiveWire_TO, WireBatch, WireError,
};
use crate::abi_reward::{RewardBox, RewardWire, RewardWire_TO, WireRollout};
use crate::abi_step_control::{MeasureRef, StepControlBox, StepControlWire, StepControlWire_TO, WireGroup};
use crate::abi_traits::MaskTraits;
use crate::abi_weight::{WeightBox, WeightWire, WeightWire_TO};
use crate::batch::{Inputs, Reduction};
use crate::config;
use crate::ctx::Ctx;
use crate::error::{ErrorKind, PluginError};
use crate::points::{AdvantageEstimator, Objective, PerToken, PreBackwardMask, Reward, StepControl, TokenWeight};
use crate::step_control::{ParameterGroup, Update};

/// Builds an advantage estimator from its table and puts it behind the wire.
pub(crate) fn advantage<T>(json: &str) -> Result<AdvantageBox, PluginError>
where
    T: AdvantageEstimator + DeserializeOwned + 'static,
{
    let guarded = create(json, T::validate, |component| Answers { inputs: component.inputs(), ..Answers::NONE })?;
    Ok(AdvantageWire_TO::from_value(guarded, TD_Opaque))
}

/// Builds an objective from its table and puts it behind the wire.
pub(crate) fn objective<T>(json: &str) -> Result<ObjectiveBox, PluginError>
where
    T: Objective + DeserializeOwned + 'static,
{
    let ask = |component: &T| Answers { inputs: component.inputs(), reduction: component.reduction(), ..Answers::NONE };
    let guarded = create(json, T::validate, ask)?;
    Ok(ObjectiveWire_TO::from_value(guarded, TD_Opaque))
}

/// Builds a mask from its table and puts it behind the wire.
pub(crate) fn mask<T>(json: &str) -> Result<MaskBox, PluginError>
where
    T: PreBackwardMask + DeserializeOwned + 'static,
{
    let guarded = create(json, T::validate, |component| Answers { inputs: component.inputs(), ..Answers::NONE })?;
    Ok(MaskWire_TO::from_value(guarded, TD_Opaque))
}

/// Builds a reward from its table and puts it behind the wire.
pub(crate) fn reward<T>(json: &str) -> Result<RewardBox, PluginError>
where
    T: Reward + DeserializeOwned + 'static,
{
    let guarded = create(json, T::validate, |_| Answers::NONE)?;
    Ok(RewardWire_TO::from_value(guarded, TD_Opaque))
}

/// Builds a token weight from its table and puts it behind the wire.
pub(crate) fn weight<T>(json: &str) -> Result<WeightBox, PluginError>
where
    T: TokenWeight + DeserializeOwned + 'static,
{
    let guarded = create(json, T::validate, |component| Answers { inputs: component.inputs(), ..Answers::NONE })?;
    Ok(WeightWire_TO::from_value(guarded, TD_Opaque))
}

/// Builds a step control from its table and puts it behind the wire.
pub(crate) fn step_control<T>(json: &str) -> Result<StepControlBox, PluginError>
where
    T: StepControl + DeserializeOwned + 'static,
{
    let ask = |component: &T| {
        let (inputs, restores_moments) = (component.inputs(), component.restores_moments());
        Answers { inputs, restores_moments, ..Answers::NONE }
    };
    Ok(StepControlWire_TO::from_value(create(json, T::validate, ask)?, TD_Opaque))
}

/// What a mask declares when it is built from its table.
pub(crate) fn mask_traits<T>(json: &str) -> Result<MaskTraits, PluginError>
where
    T: PreBackwardMask + DeserializeOwned + 'static,
{
    let asked = create(json, T::validate, |component| Answers { traits: component.traits(), ..Answers::NONE })?;
    Ok(asked.answers.traits)
}

/// What a token weight declares when it is built from its table.
pub(crate) fn weight_traits<T>(json: &str) -> Result<MaskTraits, PluginError>
where
    T: TokenWeight + DeserializeOwned + 'static,
{
    let asked = create(json, T::validate, |component| Answers { traits: component.traits(), ..Answers::NONE })?;
    Ok(asked.answers.traits)
}

/// What a component answers once, at creation: on the wire these cannot fail.
#[derive(Clone, Copy)]
struct Answers {
    inputs: Inputs,
    reduction: Reduction,
    restores_moments: bool,
    traits: MaskTraits,
}

impl Answers {
    const NONE: Self = Self {
        inputs: Inputs::NONE,
        reduction: Reduction::COMPLETION_MEAN,
        restores_moments: false,
        traits: MaskTraits::NONE,
    };
}

/// An author's component behind the wire.
struct Guarded<T> {
    component: ManuallyDrop<T>,
    answers: Answers,
    retired: bool,
}

fn create<T: DeserializeOwned>(
    json: &str,
    validate: fn(&T) -> Result<(), PluginError>,
    ask: impl FnOnce(&T) -> Answers,
) -> Result<Guarded<T>, PluginError> {
    let build = || {
        // Not dropped where a question panics: a second panic, in its `drop`, would abort.
        let component = ManuallyDrop::new(config::parse::<T>(json)?);
        if let Err(error) = validate(&component) {
            drop(ManuallyDrop::into_inner(component));
            return Err(PluginError::config(error.message()));
        }
        let answers = ask(&component);
        Ok(Guarded { component, answers, retired: false })
    };
    catch_unwind(AssertUnwindSafe(build)).unwrap_or_else(|payload| Err(panicked("while it was created", payload)))
}

impl<T> Guarded<T> {
    fn call<R>(&mut self, method: &str, work: impl FnOnce(&mut T) -> Result<R, PluginError>) -> RResult<R, WireError> {
        let outcome = if self.retired {
            Err(retired())
        } else {
            catch_unwind(AssertUnwindSafe(|| work(&mut self.component))).unwrap_or_else(|payload| {
                self.retired = true;
                Err(panicked(&format!("in `{method}`"), payload))
            })
        };
        outcome.map_err(WireError::from).into()
    }

    /// `save` has no `&mut self`; a panic there leaves the instance as it was.
    fn call_shared<R>(&self, method: &str, work: impl FnOnce(&T) -> Result<R, PluginError>) -> RResult<R, WireError> {
        let outcome = if self.retired {
            Err(retired())
        } else {
            catch_unwind(AssertUnwindSafe(|| work(&self.component)))
                .unwrap_or_else(|payload| Err(panicked(&format!("in `{method}`"), payload)))
        };
        outcome.map_err(WireError::from).into()
    }
}

impl<T> Drop for Guarded<T> {
    fn drop(&mut self) {
        let component = AssertUnwindSafe(&mut self.component);
        // A panic in an author's `drop` must not cross the ABI. What it had left to free leaks, and its payload too.
        // SAFETY: `self` is being dropped, so nobody uses `component` after this.
        let outcome = catch_unwind(move || unsafe { ManuallyDrop::drop({ component }.0) });
        if let Err(payload) = outcome {
            std::mem::forget(payload);
        }
    }
}

fn retired() -> PluginError {
    PluginError::new(ErrorKind::PANIC, "called again after it panicked (the instance is retired; start the run again)")
}

fn panicked(place: &str, payload: Box<dyn Any + Send>) -> PluginError {
    let words = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message");
    let error = PluginError::new(ErrorKind::PANIC, format!("panicked {place}: {words}"));
    // The payload's own `drop` could panic again.
    std::mem::forget(payload);
    error
}

impl<T: AdvantageEstimator> AdvantageWire for Guarded<T> {
    fn inputs(&self) -> Inputs {
        self.answers.inputs
    }

    fn estimate(
        &mut self,
        host: &mut HostRef<'_>,
        batch: &WireBatch<'_>,
        advantages: RSliceMut<'_, f32>,
    ) -> RResult<(), WireError> {
        self.call("estimate", |component| {
            component.estimate(&mut Ctx::new(host), &batch.into(), advantages.into_mut_slice())
        })
    }

    fn save(&self) -> RResult<RVec<u8>, WireError> {
        self.call_shared("save", |component| component.save().map(RVec::from))
    }

    fn load(&mut self, state: RSlice<'_, u8>) -> RResult<(), WireError> {
        self.call("load", |component| component.load(state.as_slice()))
    }
}

impl<T: Objective> ObjectiveWire for Guarded<T> {
    fn inputs(&self) -> Inputs {
        self.answers.inputs
    }

    fn reduction(&self) -> Reduction {
        self.answers.reduction
    }

    fn evaluate(
        &mut self,
        host: &mut HostRef<'_>,
        batch: &WireBatch<'_>,
        loss: RSliceMut<'_, f32>,
        dloss_dlogp: RSliceMut<'_, f32>,
    ) -> RResult<(), WireError> {
        let out = PerToken { loss: loss.into_mut_slice(), dloss_dlogp: dloss_dlogp.into_mut_slice() };
        self.call("evaluate", |component| component.evaluate(&mut Ctx::new(host), &batch.into(), out))
    }

    fn save(&self) -> RResult<RVec<u8>, WireError> {
        self.call_shared("save", |component| component.save().map(RVec::from))
    }

    fn load(&mut self, state: RSlice<'_, u8>) -> RResult<(), WireError> {
        self.call("load", |component| component.load(state.as_slice()))
    }
}

impl<T: PreBackwardMask> MaskWire for Guarded<T> {
    fn inputs(&self) -> Inputs {
        self.answers.inputs
    }

    fn mask(
        &mut self,
        host: &mut HostRef<'_>,
        batch: &WireBatch<'_>,
        keep: RSliceMut<'_, u8>,
    ) -> RResult<(), WireError> {
        self.call("mask", |component| component.mask(&mut Ctx::new(host), &batch.into(), keep.into_mut_slice()))
    }

    fn step_end(
        &mut self,
        host: &mut HostRef<'_>,
        batch: &WireBatch<'_>,
        keep: RSlice<'_, u8>,
        taken: bool,
    ) -> RResult<(), WireError> {
        self.call("step_end", |component| {
            component.step_end(&mut Ctx::new(host), &batch.into(), keep.as_slice(), taken)
        })
    }

    fn save(&self) -> RResult<RVec<u8>, WireError> {
        self.call_shared("save", |component| component.save().map(RVec::from))
    }

    fn load(&mut self, state: RSlice<'_, u8>) -> RResult<(), WireError> {
        self.call("load", |component| component.load(state.as_slice()))
    }
}

impl<T: Reward> RewardWire for Guarded<T> {
    fn score(
        &mut self,
        host: &mut HostRef<'_>,
        rollout: &WireRollout<'_>,
        rewards: RSliceMut<'_, f32>,
    ) -> RResult<(), WireError> {
        self.call("score", |component| component.score(&mut Ctx::new(host), &rollout.into(), rewards.into_mut_slice()))
    }

    fn save(&self) -> RResult<RVec<u8>, WireError> {
        self.call_shared("save", |component| component.save().map(RVec::from))
    }

    fn load(&mut self, state: RSlice<'_, u8>) -> RResult<(), WireError> {
        self.call("load", |component| component.load(state.as_slice()))
    }
}

impl<T: TokenWeight> WeightWire for Guarded<T> {
    fn inputs(&self) -> Inputs {
        self.answers.inputs
    }

    fn weigh(
        &mut self,
        host: &mut HostRef<'_>,
        batch: &WireBatch<'_>,
        keep: RSlice<'_, u8>,
        weights: RSliceMut<'_, f32>,
    ) -> RResult<(), WireError> {
        self.call("weigh", |component| {
            component.weigh(&mut Ctx::new(host), &batch.into(), keep.as_slice(), weights.into_mut_slice())
        })
    }

    fn step_end(
        &mut self,
        host: &mut HostRef<'_>,
        batch: &WireBatch<'_>,
        weights: RSlice<'_, f32>,
        taken: bool,
    ) -> RResult<(), WireError> {
        self.call("step_end", |component| {
            component.step_end(&mut Ctx::new(host), &batch.into(), weights.as_slice(), taken)
        })
    }

    fn save(&self) -> RResult<RVec<u8>, WireError> {
        self.call_shared("save", |component| component.save().map(RVec::from))
    }

    fn load(&mut self, state: RSlice<'_, u8>) -> RResult<(), WireError> {
        self.call("load", |component| component.load(state.as_slice()))
    }
}

impl<T: StepControl> StepControlWire for Guarded<T> {
    fn inputs(&self) -> Inputs {
        self.answers.inputs
    }

    fn restores_moments(&self) -> bool {
        self.answers.restores_moments
    }

    fn control(
        &mut self,
        host: &mut HostRef<'_>,
        measure: &mut MeasureRef<'_>,
        batch: &WireBatch<'_>,
        weights: RSlice<'_, f32>,
        groups: RSlice<'_, WireGroup<'_>>,
        scales: RSliceMut<'_, f64>,
    ) -> RResult<(), WireError> {
        self.call("control", |component| {
            let groups: Vec<ParameterGroup<'_>> = groups.iter().map(ParameterGroup::from).collect();
            let mut update = Update::new(measure, &groups, weights.as_slice(), scales.into_mut_slice());
            component.control(&mut Ctx::new(host), &batch.into(), &mut update)
        })
    }

    fn save(&self) -> RResult<RVec<u8>, WireError> {
        self.call_shared("save", |component| component.save().map(RVec::from))
    }

    fn load(&mut self, state: RSlice<'_, u8>) -> RResult<(), WireError> {
        self.call("load", |component| component.load(state.as_slice()))
    }
}
