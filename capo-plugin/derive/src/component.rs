//! `#[component]`: `#[keys]`, and the registration under an id.

use proc_macro2::{Span, TokenStream};
use quote::quote;
use syn::parse::{Parse, ParseStream};
use syn::{Error, Expr, Ident, ItemStruct, MetaNameValue, Path, Result, Token};

use crate::{attributes, keys};

/// Arguments of `#[component(Mask, id = "acme.mask", within = Wrapper)]`.
pub struct Arguments {
    point: Ident,
    id: Expr,
    /// The generic type that is registered with this struct as its argument.
    within: Option<Path>,
}

impl Parse for Arguments {
    fn parse(input: ParseStream) -> Result<Self> {
        let point = input.parse()?;
        let mut id = None;
        let mut within = None;
        while !input.is_empty() {
            input.parse::<Token![,]>()?;
            if input.is_empty() {
                break;
            }
            let pair: MetaNameValue = input.parse()?;
            match (pair.path.get_ident(), pair.value) {
                (Some(name), value) if name == "id" => id = Some(value),
                (Some(name), Expr::Path(path)) if name == "within" => within = Some(path.path),
                _ => {
                    return Err(Error::new_spanned(
                        pair.path,
                        "unknown argument (known: `id = \"vendor.name\"`, `within = Type`)",
                    ));
                }
            }
        }
        let no_id = || Error::new(Span::call_site(), "give an id: `id = \"vendor.name\"`");
        Ok(Self {
            point,
            id: id.ok_or_else(no_id)?,
            within,
        })
    }
}

/// The struct, its `Keys`, and its registration.
pub fn expand(arguments: &Arguments, mut item: ItemStruct) -> Result<TokenStream> {
    if attributes::first_paragraph(&item.attrs).is_empty() {
        return Err(Error::new_spanned(
            &item.ident,
            "describe the component in a doc comment",
        ));
    }
    if let Some(parameter) = item.generics.params.first() {
        return Err(Error::new_spanned(
            parameter,
            "a generic struct has no one component (use `#[keys]`, and `register!` for each type)",
        ));
    }
    let implementation = keys::implementation(&mut item)?;
    let Arguments { point, id, within } = arguments;
    let name = &item.ident;
    let registered = match within {
        Some(wrapper) => quote!(#wrapper<#name>),
        None => quote!(#name),
    };
    Ok(quote! {
        #item
        #implementation
        ::capo_plugin::register!(
            #point,
            #registered,
            #id,
            <#name as ::capo_plugin::Keys>::ABOUT
        );
    })
}
