//! The macro that makes the types of a batch of its [table](super::table), and the traits with
//! which it treats types of fields alike.

use super::field::{Dtype, Extents, Field, Source, Value};
use crate::{Denominator, Reduction, Values};

/// Type of a scalar field.
pub(super) trait Scalar: Sized {
    const DTYPE: Dtype;
    /// The value; `None` where the field is left out.
    fn to_value(self) -> Option<Value<'static>>;
    /// The scalar of a value of its own type.
    fn of_value(value: Option<Value<'static>>) -> Self;
}

macro_rules! scalar_types {
    ($(
        $type:ty: $dtype:ident, $variant:ident,
            |$own:ident| $there:expr, |$number:ident| $back:expr;
    )*) => {$(
        impl Scalar for $type {
            const DTYPE: Dtype = Dtype::$dtype;

            fn to_value(self) -> Option<Value<'static>> {
                let $own = self;
                Some(Value::$variant($there))
            }

            fn of_value(value: Option<Value<'static>>) -> Self {
                let Some(Value::$variant($number)) = value else {
                    panic!("a source gave {value:?} for a scalar of another type");
                };
                $back
            }
        }
    )*};
}

scalar_types! {
    u32: U32, Whole, |own| own.into(), |number| number as Self;
    u64: U64, Whole, |own| own, |number| number;
    usize: U64, Whole, |own| own as u64, |number| number as Self;
    f32: F32, Single, |own| own, |number| number;
    f64: F64, Double, |own| own, |number| number;
    Reduction: Reduction, Whole, |own| own.0.into(), |number| Self(number as u32);
    Denominator: Denominator, Whole, |own| own.0.into(), |number| Self(number as u32);
}

impl<T: Scalar> Scalar for Option<T> {
    const DTYPE: Dtype = T::DTYPE;

    fn to_value(self) -> Option<Value<'static>> {
        self?.to_value()
    }

    fn of_value(value: Option<Value<'static>>) -> Self {
        value.map(|value| T::of_value(Some(value)))
    }
}

/// Type of an array's elements.
pub(super) trait Element: Sized + Clone + Default + 'static {
    const DTYPE: Dtype;
    fn borrowed(values: &[Self]) -> Value<'_>;
    fn read<S: Source>(
        source: &mut S,
        field: &'static Field,
        shape: &[i64],
    ) -> Result<Option<Values<Self>>, S::Error>;
}

macro_rules! element_types {
    ($($type:ty: $dtype:ident, $variant:ident, $method:ident;)*) => {$(
        impl Element for $type {
            const DTYPE: Dtype = Dtype::$dtype;

            fn borrowed(values: &[Self]) -> Value<'_> {
                Value::$variant(values)
            }

            fn read<S: Source>(
                source: &mut S,
                field: &'static Field,
                shape: &[i64],
            ) -> Result<Option<Values<Self>>, S::Error> {
                source.$method(field, shape)
            }
        }
    )*};
}

element_types! {
    u8: Bit, Bits, bits;
    u32: U32, Ids, ids;
    f32: F32, Floats, floats;
}

/// The field called `name`, which is one of the table.
pub(super) fn field(name: &str) -> &'static Field {
    Field::named(name).expect("the name is one of the table")
}

/// The scalar called `name`, or its default.
pub(super) fn read_scalar<T: Scalar, S: Source>(
    name: &str,
    default: T,
    source: &mut S,
) -> Result<T, S::Error> {
    Ok(T::of_value(source.scalar(field(name), default.to_value())?))
}

/// The array called `name`. Without it, it is zeros if the table calls it optional.
pub(super) fn read_array<T: Element, S: Source>(
    name: &str,
    source: &mut S,
    extents: &Extents,
) -> Result<Values<T>, S::Error> {
    let field = field(name);
    let shape = extents.shape(field.shape);
    match T::read(source, field, &shape)? {
        Some(values) => Ok(values),
        None if field.required => Err(source.missing(field, &shape)),
        None => Ok(vec![T::default(); shape.iter().product::<i64>() as usize].into()),
    }
}

/// The array called `name`, if the source has it.
pub(super) fn read_option<T: Element, S: Source>(
    name: &str,
    source: &mut S,
    extents: &Extents,
) -> Result<Option<Values<T>>, S::Error> {
    let field = field(name);
    T::read(source, field, &extents.shape(field.shape))
}

/// The entries `rows` of an array's first dimension, which has `count` entries.
pub(super) fn part_of<T: Clone>(
    values: &Values<T>,
    rows: std::ops::Range<usize>,
    count: usize,
) -> Values<T> {
    let width = values.len() / count.max(1);
    values[rows.start * width..rows.end * width].to_vec().into()
}

/// True for `required`, the first word of a row.
macro_rules! is_required {
    (required) => {
        true
    };
    (optional) => {
        false
    };
}

/// Makes the types of a batch of its table.
macro_rules! define_batch {
    (
        $( scalars $scalar_class:ident { $(
            $(#[doc = $scalar_doc:literal])+
            $scalar_word:ident $scalar:ident: $scalar_type:ty = $default:expr, $limit:ident;
        )+ } )+
        $( arrays $array_class:ident { $(
            $(#[doc = $array_doc:literal])+
            $array_word:ident $array:ident:
                [$($array_extent:ident),+] $array_type:ident $($array_unit:literal)?;
        )+ } )+
        $( optional arrays $option_class:ident { $(
            $(#[doc = $option_doc:literal])+
            $option:ident: [$($option_extent:ident),+] $option_type:ident $($option_unit:literal)?;
        )+ } )+
        $( asked arrays $asked_class:ident { $(
            $(#[doc = $asked_doc:literal])+
            $asked:ident: [$($asked_extent:ident),+] $asked_type:ident $($asked_unit:literal)?,
                asked by $asked_flag:ident $asked_bit:literal;
        )+ } )+
        tensors { $(
            $(#[doc = $group_doc:literal])+
            $group:ident: $view:ident, $buffer:ident, $wire:ident,
                asked by $group_flag:ident $group_bit:literal {
                $( scalar $own:ident: $own_type:ty, $own_doc:literal; )?
                $(
                    $(#[doc = $tensor_doc:literal])+
                    $tensor:ident:
                        [$($tensor_extent:ident),+] $tensor_type:ident $($tensor_unit:literal)?;
                )+
            }
        )+ }
        context { $(
            $(#[doc = $context_doc:literal])+
            $context:ident: $context_type:ident,
                asked by $context_flag:ident $context_bit:literal;
        )+ }
    ) => {
        /// All fields of a batch, in the order of the wire. The rollout's context is described at
        /// [`ContextData`](crate::ContextData).
        pub const FIELDS: &[Field] = &[
            $($( Field {
                name: stringify!($scalar),
                rust: stringify!($scalar_type),
                class: stringify!($scalar_class),
                required: is_required!($scalar_word),
                dtype: <$scalar_type as Scalar>::DTYPE,
                shape: &[],
                unit: "",
                limit: Limit::$limit,
                about: concat!($($scalar_doc),+),
            }, )+)+
            $($( Field {
                name: stringify!($array),
                rust: concat!("&[", stringify!($array_type), "]"),
                class: stringify!($array_class),
                required: is_required!($array_word),
                dtype: <$array_type as Element>::DTYPE,
                shape: &[$(Extent::$array_extent),+],
                unit: concat!($($array_unit)?),
                limit: Limit::Any,
                about: concat!($($array_doc),+),
            }, )+)+
            $($( Field {
                name: stringify!($option),
                rust: concat!("Option<&[", stringify!($option_type), "]>"),
                class: stringify!($option_class),
                required: false,
                dtype: <$option_type as Element>::DTYPE,
                shape: &[$(Extent::$option_extent),+],
                unit: concat!($($option_unit)?),
                limit: Limit::Any,
                about: concat!($($option_doc),+),
            }, )+)+
            $($( Field {
                name: stringify!($asked),
                rust: concat!("Option<&[", stringify!($asked_type), "]>"),
                class: stringify!($asked_class),
                required: false,
                dtype: <$asked_type as Element>::DTYPE,
                shape: &[$(Extent::$asked_extent),+],
                unit: concat!($($asked_unit)?),
                limit: Limit::Any,
                about: concat!($($asked_doc),+),
            }, )+)+
            $(
                $( Field {
                    name: stringify!($tensor),
                    rust: "Tensor",
                    class: stringify!($view),
                    required: true,
                    dtype: <$tensor_type as Element>::DTYPE,
                    shape: &[$(Extent::$tensor_extent),+],
                    unit: concat!($($tensor_unit)?),
                    limit: Limit::Any,
                    about: concat!($($tensor_doc),+),
                }, )+
                $( Field {
                    name: stringify!($own),
                    rust: stringify!($own_type),
                    class: stringify!($view),
                    required: true,
                    dtype: <$own_type as Scalar>::DTYPE,
                    shape: &[],
                    unit: "",
                    limit: Limit::Any,
                    about: $own_doc,
                }, )?
            )+
        ];

        impl Inputs {
            $($(
                #[doc = concat!("[`Batch::", stringify!($asked), "`]:")]
                $(#[doc = $asked_doc])+
                pub const $asked_flag: Self = Self(1 << $asked_bit);
            )+)+
            $(
                #[doc = concat!("[`Batch::", stringify!($group), "`].")]
                $(#[doc = $group_doc])+
                pub const $group_flag: Self = Self(1 << $group_bit);
            )+
            $(
                #[doc = concat!("[`Batch::", stringify!($context), "`].")]
                $(#[doc = $context_doc])+
                pub const $context_flag: Self = Self(1 << $context_bit);
            )+

            /// The flags that ask for a part of the batch.
            pub const OF_BATCH: &[Part] = &[
                $($( Part {
                    flag: Self::$asked_flag,
                    name: stringify!($asked_flag),
                    field: stringify!($asked),
                    about: concat!($($asked_doc),+),
                }, )+)+
                $( Part {
                    flag: Self::$group_flag,
                    name: stringify!($group_flag),
                    field: stringify!($group),
                    about: concat!($($group_doc),+),
                }, )+
                $( Part {
                    flag: Self::$context_flag,
                    name: stringify!($context_flag),
                    field: stringify!($context),
                    about: concat!($($context_doc),+),
                }, )+
            ];
        }

        /// The shape, the optimizer and the scalars of a batch: all of it but its arrays.
        #[derive(Clone, Copy, Debug, PartialEq)]
        #[non_exhaustive]
        pub struct BatchScalars {
            /// Shape of the batch: B, T and G.
            pub dims: Dims,
            /// The optimizer at the coming step.
            pub optimizer: OptimizerInfo,
            $($(
                $(#[doc = $scalar_doc])+
                pub $scalar: $scalar_type,
            )+)+
        }

        impl BatchScalars {
            /// The scalars of a batch of shape `dims`, with their defaults.
            pub fn new(dims: Dims, optimizer: OptimizerInfo) -> Self {
                let mut scalars = Self {
                    dims,
                    optimizer,
                    $($( $scalar: $default, )+)+
                };
                scalars.max_completion_length = dims.tokens as usize;
                scalars
            }

            fn read<S: Source>(
                dims: Dims,
                optimizer: OptimizerInfo,
                source: &mut S,
            ) -> Result<Self, S::Error> {
                let defaults = Self::new(dims, optimizer);
                Ok(Self {
                    dims,
                    optimizer,
                    $($( $scalar: read_scalar(
                        stringify!($scalar),
                        defaults.$scalar,
                        source,
                    )?, )+)+
                })
            }
        }

        /// The whole batch of one optimizer step, never a micro-batch. A component's decision
        /// therefore does not depend on how the host splits its work.
        ///
        /// Groups are consecutive: completions `g·G .. (g+1)·G` answer one prompt. Entries of
        /// `[B, T]` arrays where `completion_mask` is 0 are padding, or tokens of an environment;
        /// their values are finite and mean nothing. A field that needs a flag of [`Inputs`] is
        /// `None` unless the component's `inputs` names the flag.
        #[derive(Clone, Copy, Debug)]
        #[non_exhaustive]
        pub struct Batch<'a> {
            /// Shape of the batch: B, T and G.
            pub dims: Dims,
            /// The optimizer at the coming step.
            pub optimizer: OptimizerInfo,
            $($(
                $(#[doc = $scalar_doc])+
                pub $scalar: $scalar_type,
            )+)+
            $($(
                #[doc = concat!(
                    "`", stringify!([$($array_extent),+]), "`", $(", ", $array_unit,)? ":"
                )]
                $(#[doc = $array_doc])+
                pub $array: &'a [$array_type],
            )+)+
            $($(
                #[doc = concat!(
                    "`", stringify!([$($option_extent),+]), "`", $(", ", $option_unit,)? ":"
                )]
                $(#[doc = $option_doc])+
                pub $option: Option<&'a [$option_type]>,
            )+)+
            $($(
                #[doc = concat!(
                    "`", stringify!([$($asked_extent),+]), "`", $(", ", $asked_unit,)? ":"
                )]
                $(#[doc = $asked_doc])+
                #[doc = concat!("\n\nNeeds [`Inputs::", stringify!($asked_flag), "`].")]
                pub $asked: Option<&'a [$asked_type]>,
            )+)+
            $(
                $(#[doc = $group_doc])+
                #[doc = concat!("\n\nNeeds [`Inputs::", stringify!($group_flag), "`].")]
                pub $group: Option<$view<'a>>,
            )+
            $(
                $(#[doc = $context_doc])+
                #[doc = concat!("\n\nNeeds [`Inputs::", stringify!($context_flag), "`].")]
                pub $context: Option<$context_type<'a>>,
            )+
        }

        impl<'a> Batch<'a> {
            /// A batch of shape `dims` with empty arrays. A host then fills in every field.
            pub fn new(dims: Dims, optimizer: OptimizerInfo) -> Self {
                Self::of(&BatchScalars::new(dims, optimizer))
            }

            /// A batch with these scalars and empty arrays.
            pub fn of(scalars: &BatchScalars) -> Self {
                Self {
                    dims: scalars.dims,
                    optimizer: scalars.optimizer,
                    $($( $scalar: scalars.$scalar, )+)+
                    $($( $array: &[], )+)+
                    $($( $option: None, )+)+
                    $($( $asked: None, )+)+
                    $( $group: None, )+
                    $( $context: None, )+
                }
            }

            /// The values of all fields that the batch has, the rollout's context apart.
            pub fn values(&self) -> Vec<(&'static Field, Value<'a>)> {
                let mut values = Vec::with_capacity(FIELDS.len());
                let mut add = |name: &str, value: Option<Value<'a>>| {
                    values.extend(value.map(|value| (field(name), value)));
                };
                $($( add(stringify!($scalar), self.$scalar.to_value()); )+)+
                $($( add(stringify!($array), Some(Element::borrowed(self.$array))); )+)+
                $($( add(stringify!($option), self.$option.map(Element::borrowed)); )+)+
                $($( add(stringify!($asked), self.$asked.map(Element::borrowed)); )+)+
                $( if let Some(group) = &self.$group {
                    $( add(stringify!($tensor), Some(Value::Tensor(group.$tensor))); )+
                    $( add(stringify!($own), group.$own.to_value()); )?
                } )+
                values
            }

            /// The optional inputs that the batch has.
            pub fn held(&self) -> Inputs {
                let mut held = Inputs::NONE;
                let mut add = |is_there: bool, flag: Inputs| {
                    held = if is_there { held | flag } else { held };
                };
                $($( add(self.$asked.is_some(), Inputs::$asked_flag); )+)+
                $( add(self.$group.is_some(), Inputs::$group_flag); )+
                $( add(self.$context.is_some(), Inputs::$context_flag); )+
                held
            }

            /// This batch with only the optional inputs that `inputs` names: the view for a
            /// component that asked for them.
            #[must_use]
            pub fn with_only(mut self, inputs: Inputs) -> Self {
                $($(
                    self.$asked = self.$asked.filter(|_| inputs.contains(Inputs::$asked_flag));
                )+)+
                $(
                    self.$group = self.$group.filter(|_| inputs.contains(Inputs::$group_flag));
                )+
                $(
                    self.$context =
                        self.$context.filter(|_| inputs.contains(Inputs::$context_flag));
                )+
                self
            }

            $($(
                #[doc = concat!(
                    "Returns [`Batch::", stringify!($asked),
                    "`]; an error when the component did not ask for it."
                )]
                pub fn $asked(&self) -> Result<&'a [$asked_type], PluginError> {
                    self.$asked
                        .ok_or_else(|| missing(stringify!($asked), stringify!($asked_flag)))
                }
            )+)+
            $(
                #[doc = concat!(
                    "Returns [`Batch::", stringify!($group),
                    "`]; an error when the component did not ask for it."
                )]
                pub fn $group(&self) -> Result<$view<'a>, PluginError> {
                    self.$group
                        .ok_or_else(|| missing(stringify!($group), stringify!($group_flag)))
                }
            )+
            $(
                #[doc = concat!(
                    "Returns [`Batch::", stringify!($context),
                    "`]; an error when the component did not ask for it."
                )]
                pub fn $context(&self) -> Result<$context_type<'a>, PluginError> {
                    self.$context
                        .ok_or_else(|| missing(stringify!($context), stringify!($context_flag)))
                }
            )+
        }

        /// [`Batch`] on the wire.
        #[repr(C)]
        #[derive(StableAbi, Clone, Copy)]
        #[allow(missing_docs, reason = "the fields are described at `Batch`")]
        pub struct WireBatch<'a> {
            pub dims: Dims,
            pub optimizer: OptimizerInfo,
            $($( pub $scalar: <$scalar_type as Cross>::There, )+)+
            $($( pub $array: RSlice<'a, $array_type>, )+)+
            $($( pub $option: ROption<RSlice<'a, $option_type>>, )+)+
            $($( pub $asked: ROption<RSlice<'a, $asked_type>>, )+)+
            $( pub $group: ROption<$wire<'a>>, )+
            $( pub $context: ROption<$context_type<'a>>, )+
        }

        impl WireBatch<'_> {
            /// Names and offsets of the fields.
            pub const OFFSETS: &'static [(&'static str, usize)] = &[
                ("dims", offset_of!(Self, dims)),
                ("optimizer", offset_of!(Self, optimizer)),
                $($( (stringify!($scalar), offset_of!(Self, $scalar)), )+)+
                $($( (stringify!($array), offset_of!(Self, $array)), )+)+
                $($( (stringify!($option), offset_of!(Self, $option)), )+)+
                $($( (stringify!($asked), offset_of!(Self, $asked)), )+)+
                $( (stringify!($group), offset_of!(Self, $group)), )+
                $( (stringify!($context), offset_of!(Self, $context)), )+
            ];
        }

        impl<'a> From<&Batch<'a>> for WireBatch<'a> {
            fn from(batch: &Batch<'a>) -> Self {
                Self {
                    dims: batch.dims,
                    optimizer: batch.optimizer,
                    $($( $scalar: batch.$scalar.there(), )+)+
                    $($( $array: batch.$array.there(), )+)+
                    $($( $option: batch.$option.there(), )+)+
                    $($( $asked: batch.$asked.there(), )+)+
                    $( $group: batch.$group.map($wire::from).into(), )+
                    $( $context: batch.$context.into(), )+
                }
            }
        }

        impl<'a> From<&WireBatch<'a>> for Batch<'a> {
            fn from(wire: &WireBatch<'a>) -> Self {
                Self {
                    dims: wire.dims,
                    optimizer: wire.optimizer,
                    $($( $scalar: Cross::back(wire.$scalar), )+)+
                    $($( $array: Cross::back(wire.$array), )+)+
                    $($( $option: Cross::back(wire.$option), )+)+
                    $($( $asked: Cross::back(wire.$asked), )+)+
                    $( $group: wire.$group.into_option().map($view::from), )+
                    $( $context: wire.$context.into_option(), )+
                }
            }
        }

        $(
            $(#[doc = $group_doc])+
            #[derive(Clone, Copy, Debug)]
            #[non_exhaustive]
            pub struct $view<'a> {
                $(
                    #[doc = concat!(
                        "`", stringify!([$($tensor_extent),+]), "`, ",
                        stringify!($tensor_type), $(", ", $tensor_unit,)? ":"
                    )]
                    $(#[doc = $tensor_doc])+
                    pub $tensor: Tensor<'a>,
                )+
                $(
                    #[doc = $own_doc]
                    pub $own: $own_type,
                )?
            }

            impl<'a> $view<'a> {
                /// Collects the parts into one view.
                pub fn new($($tensor: Tensor<'a>,)+ $($own: $own_type)?) -> Self {
                    Self { $($tensor,)+ $($own)? }
                }
            }

            #[doc = concat!("[`", stringify!($view), "`] on the wire.")]
            #[repr(C)]
            #[derive(StableAbi, Clone, Copy)]
            #[allow(missing_docs, reason = "the fields are described at the plain type")]
            pub struct $wire<'a> {
                $( pub $tensor: Tensor<'a>, )+
                $( pub $own: <$own_type as Cross>::There, )?
            }

            impl $wire<'_> {
                /// Names and offsets of the fields.
                pub const OFFSETS: &'static [(&'static str, usize)] = &[
                    $( (stringify!($tensor), offset_of!(Self, $tensor)), )+
                    $( (stringify!($own), offset_of!(Self, $own)), )?
                ];
            }

            impl<'a> From<$view<'a>> for $wire<'a> {
                fn from(view: $view<'a>) -> Self {
                    Self { $( $tensor: view.$tensor, )+ $( $own: view.$own.there() )? }
                }
            }

            impl<'a> From<$wire<'a>> for $view<'a> {
                fn from(wire: $wire<'a>) -> Self {
                    Self { $( $tensor: wire.$tensor, )+ $( $own: Cross::back(wire.$own) )? }
                }
            }

            #[doc = concat!("Owns the tensors of [`", stringify!($view), "`].")]
            #[derive(Clone, Debug)]
            pub struct $buffer {
                $(
                    #[doc = concat!(
                        "`", stringify!([$($tensor_extent),+]), "`, ",
                        stringify!($tensor_type), $(", ", $tensor_unit,)? ":"
                    )]
                    $(#[doc = $tensor_doc])+
                    pub $tensor: TensorBuffer,
                )+
                $(
                    #[doc = $own_doc]
                    pub $own: $own_type,
                )?
            }

            impl $buffer {
                /// The tensors as components see them.
                pub fn view(&self) -> $view<'_> {
                    $view { $( $tensor: self.$tensor.view(), )+ $( $own: self.$own )? }
                }

                /// The tensors with their names.
                pub fn tensors(&self) -> impl Iterator<Item = (&'static str, &TensorBuffer)> {
                    [$( (stringify!($tensor), &self.$tensor), )+].into_iter()
                }

                /// The tensors with their names, for a change.
                pub fn tensors_mut(
                    &mut self,
                ) -> impl Iterator<Item = (&'static str, &mut TensorBuffer)> {
                    [$( (stringify!($tensor), &mut self.$tensor), )+].into_iter()
                }

                fn read<S: Source>(
                    source: &mut S,
                    extents: &mut Extents,
                ) -> Result<Option<Self>, S::Error> {
                    let mut names = [$( stringify!($tensor) ),+].into_iter();
                    if !source.has(field(names.next().expect("a group has tensors")))? {
                        return Ok(None);
                    }
                    $(
                        let $own: $own_type =
                            Scalar::of_value(source.scalar(field(stringify!($own)), None)?);
                    )?
                    $(
                        let of_tensor = field(stringify!($tensor));
                        let $tensor = source.tensor(of_tensor, &extents.shape(of_tensor.shape))?;
                        extents.learn(of_tensor.shape, &$tensor.shape);
                    )+
                    Ok(Some(Self { $($tensor,)+ $($own)? }))
                }

                fn part(&self, rows: &Range<usize>) -> Self {
                    let mut part = self.clone();
                    for (name, tensor) in part.tensors_mut() {
                        if field(name).shape[0] == Extent::B {
                            *tensor = tensor.part(rows.clone());
                        }
                    }
                    part
                }
            }
        )+

        /// A batch that owns its arrays, or keeps those of someone else alive: what a trainer
        /// fills in step by step, what was read from a file, what Python gave.
        #[derive(Clone, Debug)]
        #[non_exhaustive]
        pub struct BatchBuffer {
            /// Shape, optimizer and scalars.
            pub scalars: BatchScalars,
            $($(
                #[doc = concat!(
                    "`", stringify!([$($array_extent),+]), "`", $(", ", $array_unit,)? ":"
                )]
                $(#[doc = $array_doc])+
                pub $array: Values<$array_type>,
            )+)+
            $($(
                #[doc = concat!(
                    "`", stringify!([$($option_extent),+]), "`", $(", ", $option_unit,)? ":"
                )]
                $(#[doc = $option_doc])+
                pub $option: Option<Values<$option_type>>,
            )+)+
            $($(
                #[doc = concat!(
                    "`", stringify!([$($asked_extent),+]), "`", $(", ", $asked_unit,)? ":"
                )]
                $(#[doc = $asked_doc])+
                pub $asked: Option<Values<$asked_type>>,
            )+)+
            $(
                $(#[doc = $group_doc])+
                pub $group: Option<$buffer>,
            )+
            /// The rollout's context.
            pub context: Option<AgedContext>,
        }

        impl BatchBuffer {
            /// Number of completion tokens.
            pub fn completion_tokens(&self) -> u64 {
                let entries = self.completion_mask.iter();
                entries.map(|&mask| u64::from(mask)).sum()
            }

            /// A batch with empty arrays, to be filled in.
            pub fn new(scalars: BatchScalars) -> Self {
                Self {
                    scalars,
                    $($( $array: Values::default(), )+)+
                    $($( $option: None, )+)+
                    $($( $asked: None, )+)+
                    $( $group: None, )+
                    context: None,
                }
            }

            /// The batch of shape `dims` that `source` has, without its rollout's context.
            ///
            /// # Errors
            ///
            /// When a required field is missing, or a field has the wrong type or shape.
            pub fn read<S: Source>(
                dims: Dims,
                optimizer: OptimizerInfo,
                source: &mut S,
            ) -> Result<Self, S::Error> {
                let mut extents = Extents::new(dims);
                Ok(Self {
                    scalars: BatchScalars::read(dims, optimizer, source)?,
                    $($( $array: read_array(stringify!($array), source, &extents)?, )+)+
                    $($( $option: read_option(stringify!($option), source, &extents)?, )+)+
                    $($( $asked: read_option(stringify!($asked), source, &extents)?, )+)+
                    $( $group: $buffer::read(source, &mut extents)?, )+
                    context: None,
                })
            }

            /// The batch as components see it.
            pub fn view(&self) -> Batch<'_> {
                self.view_with(&self.scalars)
            }

            /// The batch as components see it, with other scalars than its own; its shape stays.
            pub fn view_with(&self, scalars: &BatchScalars) -> Batch<'_> {
                let context = self.context.as_ref();
                Batch {
                    dims: self.scalars.dims,
                    $($( $array: &self.$array, )+)+
                    $($( $option: self.$option.as_deref(), )+)+
                    $($( $asked: self.$asked.as_deref(), )+)+
                    $( $group: self.$group.as_ref().map($buffer::view), )+
                    rollout_context: context.map(|context| context.data.lend(context.age)),
                    sampler_top_k: context.and_then(|context| context.data.top_k()),
                    ..Batch::of(scalars)
                }
            }

            /// The completions `rows`, a whole number of groups, as a batch.
            ///
            /// # Panics
            ///
            /// When a tensor with a dimension of completions is that of someone else.
            #[must_use]
            pub fn part(&self, rows: Range<usize>) -> Self {
                let count = self.scalars.dims.completions as usize;
                let mut scalars = self.scalars;
                scalars.dims.completions = rows.len() as u64;
                Self {
                    scalars,
                    $($( $array: part_of(&self.$array, rows.clone(), count), )+)+
                    $($( $option: self
                        .$option
                        .as_ref()
                        .map(|values| part_of(values, rows.clone(), count)), )+)+
                    $($( $asked: self
                        .$asked
                        .as_ref()
                        .map(|values| part_of(values, rows.clone(), count)), )+)+
                    $( $group: self.$group.as_ref().map(|group| group.part(&rows)), )+
                    context: self.context.as_ref().map(|context| AgedContext {
                        data: context.data.part(rows.clone()),
                        age: context.age,
                    }),
                }
            }
        }
    };
}

pub(super) use {define_batch, is_required};
