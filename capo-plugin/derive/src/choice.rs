//! `#[derive(Choice)]`: an enum without fields as the value of a key.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Data, DeriveInput, Error, Fields, LitStr, Result, Variant};

use crate::attributes;

/// The implementation of `KeyValue`.
pub fn expand(item: &DeriveInput) -> Result<TokenStream> {
    let Data::Enum(data) = &item.data else {
        return Err(Error::new_spanned(&item.ident, "a choice is an enum"));
    };
    let ident = &item.ident;
    let about = attributes::first_paragraph(&item.attrs);
    let names = data.variants.iter().map(name).collect::<Result<Vec<_>>>()?;
    let variants: Vec<_> = data.variants.iter().map(|variant| &variant.ident).collect();
    Ok(quote! {
        #[automatically_derived]
        impl ::capo_plugin::KeyValue for #ident {
            const ABOUT: &'static str = #about;

            fn wanted() -> ::capo_plugin::Wanted {
                ::capo_plugin::Wanted::one_of(&[#(#names),*])
            }

            fn read(
                value: &::capo_plugin::Value,
            ) -> ::core::result::Result<Self, ::std::string::String> {
                match value.as_str() {
                    #(::core::option::Option::Some(#names) => {
                        ::core::result::Result::Ok(Self::#variants)
                    })*
                    _ => ::core::result::Result::Err(Self::wanted().request()),
                }
            }

            fn json(&self) -> ::std::string::String {
                let name = match self {
                    #(Self::#variants => #names,)*
                };
                ::std::format!("\"{name}\"")
            }
        }
    })
}

/// Name of a variant in a table: that of `#[choice("name")]`, or else its own in snake case.
fn name(variant: &Variant) -> Result<String> {
    if !matches!(variant.fields, Fields::Unit) {
        return Err(Error::new_spanned(
            &variant.fields,
            "a variant of a choice has no fields",
        ));
    }
    let given = variant
        .attrs
        .iter()
        .find(|attribute| attribute.path().is_ident("choice"));
    match given {
        Some(attribute) => Ok(attribute.parse_args::<LitStr>()?.value()),
        None => Ok(snake_case(&variant.ident.to_string())),
    }
}

fn snake_case(name: &str) -> String {
    let mut words = String::new();
    for (at, letter) in name.char_indices() {
        if letter.is_uppercase() && at > 0 {
            words.push('_');
        }
        words.extend(letter.to_lowercase());
    }
    words
}
