//! The fields of a [`Batch`] as data, for code that treats all of them alike: files, checks,
//! bindings of other languages, documentation.

use crate::Batch;
pub use crate::batch::FIELDS;
pub use crate::batch::field::{
    Dtype, Extent, Extents, Field, Limit, Part, Source, Value, fits, shape_text,
};

impl Field {
    /// The field called `name`.
    pub fn named(name: &str) -> Option<&'static Self> {
        FIELDS.iter().find(|field| field.name == name)
    }
}

impl<'a> Batch<'a> {
    /// The value of the field called `name`, if the batch has it.
    pub fn value(&self, name: &str) -> Option<Value<'a>> {
        let mut values = self.values().into_iter();
        values.find_map(|(field, value)| (field.name == name).then_some(value))
    }
}
