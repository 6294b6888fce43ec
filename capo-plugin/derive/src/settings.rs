//! `#[settings]`: a struct whose fields hold everything that is known of a trainer's settings.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{Attribute, Error, Field, Ident, ItemStruct, Result, parse_quote};

use crate::attributes::{self, Argument, Arguments};

/// The struct with the defaults of its fields in serde, and its implementations.
pub fn expand(mut item: ItemStruct) -> Result<TokenStream> {
    let name = item.ident.clone();
    item.attrs.push(parse_quote!(#[serde(deny_unknown_fields)]));
    let mut functions = Vec::new();
    let mut defaults = Vec::new();
    let mut settings = Vec::new();
    for field in &mut item.fields {
        let Some(ident) = field.ident.clone() else {
            return Err(Error::new_spanned(field, "a setting has a name"));
        };
        let arguments = attributes::take(&mut field.attrs, "setting")?;
        if field.attrs.iter().any(is_skipped) {
            defaults.push(quote!(#ident: Default::default()));
            continue;
        }
        let arguments = arguments.map_or_else(Vec::new, |Arguments { list, .. }| list);
        let given = arguments
            .iter()
            .find(|argument| argument.name == "default")
            .map(Argument::value)
            .transpose()?;
        let is_required = given.is_none() && attributes::in_option(&field.ty).is_none();
        if let Some(value) = given {
            let function = format_ident!("default_of_{ident}");
            let ty = &field.ty;
            let path = format!("{name}::{function}");
            field.attrs.push(parse_quote!(#[serde(default = #path)]));
            let value = match attributes::text(value) {
                Some(_) => quote!(#value.into()),
                None => quote!(#value),
            };
            functions.push(quote!(fn #function() -> #ty { #value }));
            defaults.push(quote!(#ident: Self::#function()));
        } else {
            defaults.push(quote!(#ident: Default::default()));
        }
        settings.push(setting(field, &ident, &arguments, is_required));
    }
    Ok(quote! {
        #item
        impl #name { #(#functions)* }
        impl Default for #name {
            fn default() -> Self { Self { #(#defaults),* } }
        }
        impl Settings for #name {
            const SETTINGS: &'static [Setting] = &[#(#settings),*];
        }
    })
}

/// The `Setting` of a field.
fn setting(field: &Field, ident: &Ident, arguments: &[Argument], is_required: bool) -> TokenStream {
    let name = ident.to_string();
    let about = attributes::doc(&field.attrs);
    let ty = attributes::in_option(&field.ty).unwrap_or(&field.ty);
    let others = arguments
        .iter()
        .filter(|argument| argument.name != "default");
    let fields = others.map(|Argument { name: key, value }| {
        let value = match (key.to_string().as_str(), value) {
            ("at_least" | "above" | "at_most" | "below", Some(value)) => {
                quote!(Some(#value as f64))
            }
            ("trl" | "verl", Some(names)) => quote!(&#names),
            ("trl" | "verl", None) => quote!(&[#name]),
            (_, Some(value)) => quote!(#value),
            (_, None) => quote!(true),
        };
        quote!(#key: #value)
    });
    quote! {
        Setting {
            name: #name,
            about: #about,
            required: #is_required,
            #(#fields,)*
            ..Setting::of::<Self, #ty>(#name)
        }
    }
}

/// True for `#[serde(skip)]`: the field is no setting.
fn is_skipped(attribute: &Attribute) -> bool {
    attribute.path().is_ident("serde")
        && attribute
            .parse_args::<Ident>()
            .is_ok_and(|word| word == "skip")
}
