//! The macros of `capo-plugin`, and of the settings of its trainer. All of them read the attributes
//! of a struct's fields in the same way.
//!
//! `capo-plugin` exports `component`, `keys` and `Choice`, and documents them; a plugin depends on
//! `capo-plugin` alone.

mod attributes;
mod choice;
mod component;
mod keys;
mod settings;

use proc_macro::TokenStream;
use syn::{DeriveInput, Error, ItemStruct, parse_macro_input};

/// Describes a component at its struct and registers it. See `capo_plugin::component`.
#[proc_macro_attribute]
pub fn component(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let arguments = parse_macro_input!(arguments as component::Arguments);
    let item = parse_macro_input!(item as ItemStruct);
    component::expand(&arguments, item)
        .unwrap_or_else(Error::into_compile_error)
        .into()
}

/// Describes keys at the fields of a struct. See `capo_plugin::keys`.
#[proc_macro_attribute]
pub fn keys(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let _ = parse_macro_input!(arguments as syn::parse::Nothing);
    let item = parse_macro_input!(item as ItemStruct);
    keys::expand(item)
        .unwrap_or_else(Error::into_compile_error)
        .into()
}

/// Makes an enum the value of a key. See `capo_plugin::Choice`.
#[proc_macro_derive(Choice, attributes(choice))]
pub fn choice(item: TokenStream) -> TokenStream {
    choice::expand(&parse_macro_input!(item as DeriveInput))
        .unwrap_or_else(Error::into_compile_error)
        .into()
}

/// Describes the settings of a trainer's config at the fields of a struct:
///
/// ```ignore
/// #[settings]
/// #[derive(Serialize, Deserialize)]
/// pub struct RolloutConfig {
///     /// The number of completions per prompt.
///     #[setting(default = 8, at_least = 1, trl, verl = ["n"])]
///     pub num_generations: usize,
/// }
/// ```
///
/// The attribute gives each field its default in serde, and the struct `Default` and `Settings`
/// with a `Setting` per field. Both names must be imported where it stands. Unknown fields are
/// refused, and empty lists are not written. The keys of `#[setting(...)]` are `default` and the
/// fields of `Setting`. A key without a value says `true`, or for `trl` and `verl` that the name
/// there is the same. An `Option` without a default is `None`; any other field without one must be
/// given.
#[proc_macro_attribute]
pub fn settings(_: TokenStream, item: TokenStream) -> TokenStream {
    let item = parse_macro_input!(item as ItemStruct);
    settings::expand(item)
        .unwrap_or_else(Error::into_compile_error)
        .into()
}

#[cfg(test)]
mod tests {
    use proc_macro2::TokenStream;
    use syn::parse_str;

    use crate::{choice, component, keys};

    /// The compile error of a struct with one field.
    fn refused(attribute: &str, ty: &str) -> String {
        let item = format!("struct Cap {{ /// A key.\n#[key({attribute})] key: {ty} }}");
        keys::expand(parse_str(&item).unwrap())
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn wrong_arguments_of_a_key_are_refused() {
        let known =
            "default, above, at_least, below, at_most, infinite, search, not_with, name, flatten";
        assert_eq!(
            refused("abov = 0", "f32"),
            format!("unknown argument `abov` (known: {known})")
        );
        assert_eq!(
            refused("above = 0, above = 1", "f32"),
            "`above` is there twice (leave one out)"
        );
        assert_eq!(refused("above", "f32"), "give a value: `above = ...`");
        assert_eq!(
            refused("search = 1", "f32"),
            "give a range: `search = 0.01..=1.0`"
        );
        assert_eq!(
            refused("search = 1..2", "f32"),
            "give both ends, which the search includes: `search = 0.01..=1.0`"
        );
        assert_eq!(
            refused("flatten, default = 1", "Group"),
            "a group of keys describes its own keys (leave this out)"
        );
        assert_eq!(refused("above(0)", "f32"), "write `name = value`");
    }

    #[test]
    fn wrong_components_are_refused() {
        let arguments = |text: &str| parse_str::<component::Arguments>(text);
        let refused = |text: &str| arguments(text).err().unwrap().to_string();
        assert_eq!(refused("Mask"), "give an id: `id = \"vendor.name\"`");
        assert_eq!(
            refused("Mask, name = \"a.b\""),
            "unknown argument (known: `id = \"vendor.name\"`, `within = Type`)"
        );
        let expand = |item: &str| -> Result<TokenStream, String> {
            let arguments = arguments("Mask, id = \"a.b\"").unwrap();
            component::expand(&arguments, parse_str(item).unwrap())
                .map_err(|error| error.to_string())
        };
        assert_eq!(
            expand("struct Cap {}").unwrap_err(),
            "describe the component in a doc comment"
        );
        assert_eq!(
            expand("/// A cap.\nstruct Cap(f32);").unwrap_err(),
            "give the fields names: they are keys"
        );
        assert!(
            expand("/// A cap.\nstruct Cap<T> { t: T }")
                .unwrap_err()
                .starts_with("a generic struct has no one component")
        );
        assert!(expand("/// A cap.\nstruct Cap;").is_ok());
    }

    #[test]
    fn wrong_choices_are_refused() {
        let refused = |item: &str| {
            choice::expand(&parse_str(item).unwrap())
                .unwrap_err()
                .to_string()
        };
        assert_eq!(refused("struct Side {}"), "a choice is an enum");
        assert_eq!(
            refused("enum Side { Above(f32) }"),
            "a variant of a choice has no fields"
        );
    }
}
