//! What the points share: the adapters between an author's trait, the wire, and a host's handle.

/// The wire's methods that the components of every point have, in a guard.
macro_rules! guarded_methods {
    () => {
        fn inputs(&self) -> Inputs {
            self.answers.inputs
        }

        fn save(&self) -> RResult<RVec<u8>, WireError> {
            self.call_shared("save", |component| component.save().map(RVec::from))
        }

        fn load(&mut self, state: RSlice<'_, u8>) -> RResult<(), WireError> {
            self.call("load", |component| component.load(state.as_slice()))
        }

        fn extension(&mut self, _id: RStr<'_>) -> ROption<Extension<'_>> {
            ROption::RNone
        }
    };
}

/// The wire's methods that masks and weights have besides, in a guard.
macro_rules! guarded_decision {
    ($decided:ident: $entry:ty) => {
        fn traits(&self) -> Traits {
            self.answers.traits
        }

        fn step_end(
            &mut self,
            host: &mut HostRef<'_>,
            batch: &WireBatch<'_>,
            $decided: RSlice<'_, $entry>,
            taken: bool,
        ) -> RResult<(), WireError> {
            let batch = Batch::from(batch);
            self.call("step_end", |component| {
                component.step_end(&mut Ctx::new(host), &batch, $decided.as_slice(), taken)
            })
        }
    };
}

/// The methods that the handles of masks and weights have besides their decision.
macro_rules! handled_decision {
    ($decided:ident: $entry:ty, $what:literal) => {
        /// Declarations about the component's decisions, made once, at creation.
        pub fn traits(&self) -> Traits {
            keeping_arithmetic(|| self.wire.traits())
        }

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
            assert_eq!(
                $decided.len(),
                batch.dims.len(),
                concat!("`", stringify!($decided), "` is [B, T]")
            );
            let $decided = RSlice::from_slice($decided);
            self.call("step_end", sink, batch, |wire, host, seen| {
                wire.step_end(host, seen, $decided, taken)
            })
        }
    };
}

/// Both sides of a point. A plugin registers an implementation of `$point` and builds it, as an
/// `$object` on the wire; a host asks an image for a `$handle`. `$answers` are what a component is
/// asked once, at creation.
macro_rules! point {
    (
        $point:ident, built by $name:ident $what:literal,
        as $object:ident over $wire:ident,
        held as $handle:ident,
        $component:ident answers $answers:expr
    ) => {
        #[doc = concat!("A live [`", stringify!($point), "`].")]
        pub type $handle = crate::component::Component<$object>;

        impl crate::component::WireObject for $object {
            const POINT: crate::Point = crate::Point::$point;

            fn inputs(&self) -> Inputs {
                <$object>::inputs(self)
            }

            fn save(&self) -> RResult<RVec<u8>, WireError> {
                <$object>::save(self)
            }

            fn load(&mut self, state: RSlice<'_, u8>) -> RResult<(), WireError> {
                <$object>::load(self, state)
            }

            fn extension(&mut self, id: RStr<'_>) -> ROption<Extension<'_>> {
                <$object>::extension(self, id)
            }
        }

        /// This image's components at the point.
        pub(crate) static OWN: crate::wire::PointList<$object> = crate::wire::PointList {
            components: crate::described::components::<$object>,
            create: crate::described::create::<$object>,
        };

        /// Builds a component from its table and puts it behind the wire.
        pub(crate) fn $name<T>(json: &str) -> Result<$object, PluginError>
        where
            T: $point + crate::Keys + 'static,
        {
            let component = crate::guard::create(json, T::validate, |$component: &T| $answers)?;
            Ok($wire::from_value(
                component,
                abi_stable::sabi_trait::TD_Opaque,
            ))
        }

        impl crate::register::Entry {
            #[doc = concat!("An entry of ", $what, ".")]
            #[allow(non_snake_case, reason = "`register!` is told the trait's name")]
            pub const fn $point<T>(name: crate::register::Name) -> Self
            where
                T: $point + crate::Keys + 'static,
            {
                let make: crate::register::Make = |json| Ok(Box::new($name::<T>(json)?));
                Self::new::<T>(crate::Point::$point, make, name)
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
