//! `#[keys]`: a struct whose fields are keys of a component's table.

use proc_macro2::{TokenStream, TokenTree};
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Error, Expr, Field, Fields, Ident, ItemStruct, RangeLimits, Result, Type};

use crate::attributes::{self, Argument, Arguments};

/// Arguments of `#[key(...)]`.
const KNOWN: [&str; 10] = [
    "default", "above", "at_least", "below", "at_most", "infinite", "search", "not_with", "name",
    "flatten",
];

/// The struct without the attributes of its fields, and its implementation of `Keys`.
pub fn expand(mut item: ItemStruct) -> Result<TokenStream> {
    let implementation = implementation(&mut item)?;
    Ok(quote!(#item #implementation))
}

/// A field of the struct.
enum Member {
    /// Expression for its `Key`.
    Key(TokenStream),
    /// A group of keys, which has its own `Keys`.
    Group,
    /// Built by `Default`.
    State,
}

/// Takes the attributes from the fields and returns the implementation of `Keys`.
pub fn implementation(item: &mut ItemStruct) -> Result<TokenStream> {
    if let Fields::Unnamed(fields) = &item.fields {
        return Err(Error::new_spanned(
            fields,
            "give the fields names: they are keys",
        ));
    }
    let mut descriptions = Vec::new();
    let mut values = Vec::new();
    let mut groups = Vec::new();
    for field in &mut item.fields {
        let member = member(field)?;
        let name = &field.ident;
        let ty = &field.ty;
        values.push(match &member {
            Member::Key(key) => quote!(#name: #key.read(table)?),
            Member::Group => quote!(#name: <#ty as ::capo_plugin::Keys>::from_table(table)?),
            Member::State => quote!(#name: ::core::default::Default::default()),
        });
        match member {
            Member::Key(key) => descriptions.push(quote!(keys.push(#key.describe());)),
            Member::Group => {
                descriptions.push(quote!(keys.extend(<#ty as ::capo_plugin::Keys>::keys());));
                groups.push(ty.clone());
            }
            Member::State => {}
        }
    }
    let name = &item.ident;
    let about = attributes::first_paragraph(&item.attrs);
    let (parameters, arguments, conditions) = item.generics.split_for_impl();
    let mut bounds = conditions.cloned();
    for group in groups.iter().filter(|group| is_generic(group, item)) {
        let bounds = bounds.get_or_insert_with(|| syn::parse_quote!(where));
        let bound = syn::parse_quote!(#group: ::capo_plugin::Keys);
        bounds.predicates.push(bound);
    }
    Ok(quote! {
        #[automatically_derived]
        // A limit may be a number of any type.
        #[allow(clippy::unnecessary_cast)]
        impl #parameters ::capo_plugin::Keys for #name #arguments #bounds {
            const ABOUT: &'static str = #about;

            fn keys() -> ::std::vec::Vec<::capo_plugin::wire::KeyDoc> {
                #[allow(unused_mut, reason = "a struct may have no keys")]
                let mut keys = ::std::vec::Vec::new();
                #(#descriptions)*
                keys
            }

            fn from_table(
                table: &::capo_plugin::Table,
            ) -> ::core::result::Result<Self, ::capo_plugin::PluginError> {
                let _ = table;
                ::core::result::Result::Ok(Self { #(#values),* })
            }
        }
    })
}

/// True if a type names a type parameter of the struct.
fn is_generic(ty: &Type, item: &ItemStruct) -> bool {
    let parameters: Vec<&Ident> = item.generics.type_params().map(|one| &one.ident).collect();
    names(quote!(#ty))
        .iter()
        .any(|name| parameters.contains(&name))
}

/// All names in some code.
fn names(code: TokenStream) -> Vec<Ident> {
    let mut found = Vec::new();
    for token in code {
        match token {
            TokenTree::Ident(name) => found.push(name),
            TokenTree::Group(group) => found.extend(names(group.stream())),
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
    found
}

/// What a field is; takes its `#[key(...)]`.
fn member(field: &mut Field) -> Result<Member> {
    let Some(arguments) = attributes::take(&mut field.attrs, "key")? else {
        return Ok(Member::State);
    };
    arguments.check(&KNOWN)?;
    if arguments.find("flatten").is_some() {
        return match arguments.list.iter().find(|other| other.name != "flatten") {
            None => Ok(Member::Group),
            Some(other) => Err(Error::new(
                other.name.span(),
                "a group of keys describes its own keys (leave this out)",
            )),
        };
    }
    key(field, &arguments).map(Member::Key)
}

/// Expression for the `Key` of a field.
fn key(field: &Field, arguments: &Arguments) -> Result<TokenStream> {
    let ty = &field.ty;
    let name = match arguments.find("name") {
        Some(name) => name.value()?.clone(),
        None => named_as(field.ident.as_ref().expect("fields have names")),
    };
    let about = attributes::first_paragraph(&field.attrs);
    let about = if about.is_empty() {
        // The description of the type, which must have one then.
        quote_spanned!(ty.span()=> const { ::capo_plugin::__private::described::<#ty>() })
    } else {
        quote!(#about)
    };
    let mut key = quote_spanned!(ty.span()=> ::capo_plugin::Key::<#ty>::new(#name, #about));
    for argument in &arguments.list {
        key.extend(call(argument, field)?);
    }
    Ok(key)
}

/// Name of a field as a string literal.
fn named_as(ident: &Ident) -> Expr {
    let name = ident.to_string();
    let name = name.trim_start_matches("r#");
    let literal = syn::LitStr::new(name, ident.span());
    syn::parse_quote!(#literal)
}

/// The call on a `Key` that an argument stands for.
fn call(argument: &Argument, field: &Field) -> Result<TokenStream> {
    let name = &argument.name;
    let span = name.span();
    let ty = &field.ty;
    Ok(match name.to_string().as_str() {
        "name" => TokenStream::new(),
        "infinite" => quote_spanned!(span=> .infinite()),
        "default" => {
            let value = argument.value()?;
            match attributes::text(value) {
                Some(_) => quote!(.default(<#ty as ::core::convert::From<&str>>::from(#value))),
                None => quote!(.default(#value)),
            }
        }
        "not_with" => {
            let others = match argument.value()? {
                Expr::Array(list) => list.elems.iter().collect(),
                one => vec![one],
            };
            quote_spanned!(span=> #(.not_with(#others))*)
        }
        "search" => {
            let value = argument.value()?;
            let Expr::Range(range) = value else {
                return Err(Error::new_spanned(
                    value,
                    "give a range: `search = 0.01..=1.0`",
                ));
            };
            match (&range.start, &range.limits, &range.end) {
                (Some(low), RangeLimits::Closed(_), Some(high)) => {
                    quote_spanned!(span=> .search((#low) as f64, (#high) as f64))
                }
                _ => {
                    return Err(Error::new_spanned(
                        value,
                        "give both ends, which the search includes: `search = 0.01..=1.0`",
                    ));
                }
            }
        }
        _ => {
            let limit = argument.value()?;
            quote_spanned!(span=> .#name((#limit) as f64))
        }
    })
}
