//! Code that the points share: common trait methods with their documentation, and the adapters between the two sides.

/// The method in which a component asks for inputs.
macro_rules! inputs_method {
    () => {
        /// Inputs that the host must compute for this component. The host asks once, at creation. An input without
        /// its flag is absent from the component's batches.
        fn inputs(&self) -> Inputs {
            Inputs::NONE
        }
    };
}

/// The method in which a mask or a weight makes declarations.
macro_rules! traits_method {
    () => {
        /// Facts about the component's decisions on which a host may rely. The host asks an instance that it creates
        /// only for this question. Declare only facts that hold for every batch; `host check` tests them.
        fn traits(&self) -> MaskTraits {
            MaskTraits::NONE
        }
    };
}

/// Methods that any component may override: a check of its table, and saved state.
macro_rules! common_methods {
    () => {
        /// Refuses key values that are out of range or contradict each other. Asked once, at creation, before any other method.
        ///
        /// # Errors
        ///
        /// A message about the fault in the table: the key, the value, the limit. Its kind always becomes
        /// [`ErrorKind::CONFIG`](crate::ErrorKind::CONFIG), and no run starts.
        fn validate(&self) -> Result<(), PluginError> {
            Ok(())
        }

        /// State for a checkpoint; a resumed run continues bit for bit.
        ///
        /// # Errors
        ///
        /// When the state cannot be serialized.
        fn save(&self) -> Result<Vec<u8>, PluginError> {
            Ok(Vec::new())
        }

        /// Restores the state that [`save`](Self::save) wrote.
        ///
        /// # Errors
        ///
        /// When `state` comes from another component, configuration or version; the component then stays unchanged.
        fn load(&mut self, state: &[u8]) -> Result<(), PluginError> {
            if state.is_empty() {
                return Ok(());
            }
            let len = state.len();
            Err(PluginError::state(format!(
                "{len} bytes of saved state, but this component keeps none (it was saved by another one)"
            )))
        }
    };
}

/// The wire's side of [`common_methods`], in a guard.
macro_rules! guarded_state {
    () => {
        fn save(&self) -> RResult<RVec<u8>, WireError> {
            self.call_shared("save", |component| component.save().map(RVec::from))
        }

        fn load(&mut self, state: RSlice<'_, u8>) -> RResult<(), WireError> {
            self.call("load", |component| component.load(state.as_slice()))
        }
    };
}

/// The wire's side of [`inputs_method`], in a guard.
macro_rules! guarded_inputs {
    () => {
        fn inputs(&self) -> Inputs {
            self.answers.inputs
        }
    };
}

/// The wire's side of a method that fills one array, in a guard.
macro_rules! guarded_fill {
    ($method:ident($input:ident: $view:ident, $out:ident: $entry:ty)) => {
        fn $method(
            &mut self,
            host: &mut HostRef<'_>,
            $input: &$view<'_>,
            $out: RSliceMut<'_, $entry>,
        ) -> RResult<(), WireError> {
            self.call(stringify!($method), |component| {
                component.$method(&mut Ctx::new(host), &$input.into(), $out.into_mut_slice())
            })
        }
    };
}

/// The wire's side of a mask's or a weight's `step_end`, in a guard.
macro_rules! guarded_step_end {
    ($decided:ident: $entry:ty) => {
        fn step_end(
            &mut self,
            host: &mut HostRef<'_>,
            batch: &WireBatch<'_>,
            $decided: RSlice<'_, $entry>,
            taken: bool,
        ) -> RResult<(), WireError> {
            self.call("step_end", |component| {
                component.step_end(&mut Ctx::new(host), &batch.into(), $decided.as_slice(), taken)
            })
        }
    };
}

/// `step_end` of a mask's or a weight's handle.
macro_rules! handled_step_end {
    ($decided:ident: $entry:ty, $what:literal) => {
        #[doc = concat!("Calls `step_end` with the ", $what, ".")]
        ///
        /// # Errors
        ///
        /// The component's own message.
        pub fn step_end(
            &mut self,
            sink: &mut dyn Sink,
            batch: &Batch<'_>,
            $decided: &[$entry],
            taken: bool,
        ) -> Result<(), PluginError> {
            assert_eq!($decided.len(), batch.dims.len(), concat!("`", stringify!($decided), "` is [B, T]"));
            let $decided = RSlice::from_slice($decided);
            self.call("step_end", sink, batch, |wire, host, seen| wire.step_end(host, seen, $decided, taken))
        }
    };
}

/// Both sides of a point. A plugin registers and builds an implementation of `$trait`; a host asks an image for a
/// `$handle`. `$answers` are the questions asked at creation, and `$traits` is the allowed declaration.
macro_rules! point {
    (
        $point:ident: $trait:ident, built by $name:ident $what:literal,
        $list:ident of $object:ident over $wire:ident $($inputs:ident)?,
        $handle:ident answers |$component:ident| $answers:expr
        $(, declares $traits:ident)?
    ) => {
        #[doc = concat!("A live [`", stringify!($trait), "`].")]
        pub type $handle = crate::component::Component<$object>;

        impl crate::component::Wired for $object {
            const POINT: crate::Point = crate::Point::$point;
            type List = $list;

            fn doors(list: &$list) -> crate::component::Doors<Self> {
                (list.components, list.create)
            }

            fn inputs(&self) -> crate::batch::Inputs {
                crate::batch::Inputs::NONE $(| <$object>::$inputs(self))?
            }

            fn save(&self) -> RResult<RVec<u8>, WireError> {
                <$object>::save(self)
            }

            fn load(&mut self, state: RSlice<'_, u8>) -> RResult<(), WireError> {
                <$object>::load(self, state)
            }
        }

        /// This image's components at the point.
        pub(crate) static OWN: $list = $list {
            components: crate::described::components::<$object>,
            create: crate::described::create::<$object>,
        };

        /// Builds a component from its table and puts it behind the wire.
        pub(crate) fn $name<T>(json: &str) -> Result<$object, PluginError>
        where
            T: $trait + serde::de::DeserializeOwned + 'static,
        {
            let component = crate::guard::create(json, T::validate, |$component: &T| $answers)?;
            Ok($wire::from_value(component, abi_stable::sabi_trait::TD_Opaque))
        }

        impl crate::register::Entry {
            #[doc = concat!("An entry of ", $what, ".")]
            #[allow(non_snake_case, reason = "`register!` is told the trait's name")]
            pub const fn $trait<T>(names: crate::register::Names, docs: crate::keys::KeyDocs) -> Self
            where
                T: $trait + serde::de::DeserializeOwned + 'static,
            {
                let make: crate::register::Make = |json| Ok(Box::new($name::<T>(json)?));
                let entry = Self::new::<T>(crate::Point::$point, make, names, docs);
                $(let entry = entry.declaring(|json| {
                    let ask = |component: &T| Answers { $traits: component.$traits(), ..Answers::NONE };
                    Ok(crate::guard::create(json, T::validate, ask)?.answers.$traits)
                });)?
                entry
            }
        }

        impl crate::image::Image {
            #[doc = concat!("Builds ", $what, ", `id`, from its table, written as JSON text.")]
            ///
            /// # Errors
            ///
            /// When the image has no such component, or the component refuses its table.
            pub fn $name(&self, id: &str, json: &str) -> Result<$handle, PluginError> {
                self.create(id, json)
            }
        }
    };
}
