//! The declarations and names of a source file, before paths are resolved.

use std::collections::BTreeMap;

use syn::buffer::{Cursor, TokenBuffer};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, Meta, UseTree};

use super::{Contents, Module, Scope};

/// Reads one file: its module and the inline modules inside it.
pub struct Reader {
    scope: Scope,
    /// The module that is being read.
    current: Module,
    pub modules: BTreeMap<Module, Contents>,
    /// Modules that are declared here and have a file of their own.
    pub in_own_files: Vec<Module>,
}

impl Reader {
    pub fn new(scope: Scope, current: Module) -> Self {
        Self { scope, current, modules: BTreeMap::new(), in_own_files: Vec::new() }
    }

    pub fn add_items(&mut self, items: &[Item]) {
        let read = items.iter().filter(|item| !self.is_excluded(attributes(item)));
        let (types, values): (Vec<_>, Vec<_>) = read.filter_map(name_of).partition(|(_, is_type)| *is_type);
        let contents = self.contents();
        contents.types.extend(types.into_iter().map(|(name, _)| name));
        contents.values.extend(values.into_iter().map(|(name, _)| name));
    }

    fn contents(&mut self) -> &mut Contents {
        self.modules.entry(self.current.clone()).or_default()
    }

    fn is_excluded(&self, attributes: &[Attribute]) -> bool {
        let is_for_tests = |it: &Attribute| {
            it.path().is_ident("cfg") && it.parse_args::<Meta>().is_ok_and(|meta| needs_test(&meta))
        };
        self.scope == Scope::Program && attributes.iter().any(is_for_tests)
    }

    fn add_imports(&mut self, tree: &UseTree, before: &[String]) {
        let extended = |name: &syn::Ident| [before, &[plain(name)]].concat();
        let (path, known_as) = match tree {
            UseTree::Path(path) => return self.add_imports(&path.tree, &extended(&path.ident)),
            UseTree::Group(group) => {
                return group.items.iter().for_each(|item| self.add_imports(item, before));
            }
            UseTree::Name(name) if name.ident == "self" => (before.to_vec(), before.last().cloned()),
            UseTree::Name(name) => (extended(&name.ident), Some(plain(&name.ident))),
            UseTree::Rename(rename) if rename.ident == "self" && !before.is_empty() => {
                (before.to_vec(), Some(plain(&rename.rename)))
            }
            UseTree::Rename(rename) => (extended(&rename.ident), Some(plain(&rename.rename))),
            UseTree::Glob(_) => (before.to_vec(), None),
        };
        match known_as {
            Some(name) => self.contents().imports.push((name, path)),
            None => self.contents().globs.push(path),
        }
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast Item) {
        if !self.is_excluded(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let name = plain(&item.ident);
        self.contents().children.insert(name.clone());
        for unsupported in ["path", "macro_use"] {
            let is_used = item.attrs.iter().any(|it| is_or_sets(&it.meta, unsupported));
            assert!(
                !is_used,
                "module `{name}`: the module graph does not follow `#[{unsupported}]`; remove it"
            );
        }
        self.current.push(name);
        match &item.content {
            Some((_, items)) => {
                self.add_items(items);
                visit::visit_item_mod(self, item);
            }
            None => self.in_own_files.push(self.current.clone()),
        }
        self.current.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let before: &[String] = if item.leading_colon.is_some() { &[String::new()] } else { &[] };
        self.add_imports(&item.tree, before);
    }

    fn visit_item_extern_crate(&mut self, item: &'ast syn::ItemExternCrate) {
        assert!(item.ident != "self", "the module graph does not follow `extern crate self`; write `crate`");
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if let (None, syn::Type::Path(type_path)) = (&item.trait_, &*item.self_ty) {
            let path = type_path.path.segments.iter().map(|it| plain(&it.ident)).collect();
            let functions = item.items.iter().filter_map(|it| match it {
                syn::ImplItem::Fn(function) => Some(plain(&function.sig.ident)),
                _ => None,
            });
            let functions = functions.collect();
            self.contents().impls.push((path, functions));
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        self.contents().called_methods.insert(plain(&call.method));
        visit::visit_expr_method_call(self, call);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let before = path.leading_colon.map(|_| String::new());
        let path_as_written = before.into_iter().chain(path.segments.iter().map(|it| plain(&it.ident)));
        let path_as_written = path_as_written.collect();
        self.contents().paths.push(path_as_written);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        let is_include = call.path.segments.last().is_some_and(|it| it.ident == "include");
        let is_generated = strings_in(TokenBuffer::new2(call.tokens.clone()).begin())
            .iter()
            .any(|it| it.value() == "OUT_DIR");
        assert!(
            !is_include || is_generated,
            "the module graph does not follow `include!`; declare a module (only data that `build.rs` writes may be included)"
        );
        let tokens = TokenBuffer::new2(call.tokens.clone());
        add_names(tokens.begin(), self.contents());
        visit::visit_macro(self, call);
    }

    fn visit_meta_list(&mut self, list: &'ast syn::MetaList) {
        let tokens = TokenBuffer::new2(list.tokens.clone());
        add_names(tokens.begin(), self.contents());
        // serde's attributes have paths in strings.
        for path in strings_in(tokens.begin()).iter().filter_map(|it| it.parse::<syn::Path>().ok()) {
            self.visit_path(&path.clone());
        }
    }
}

/// The name without `r#`.
fn plain(name: &syn::Ident) -> String {
    name.to_string().trim_start_matches("r#").to_string()
}

/// Whether the attribute has this name, or a `cfg_attr` sets one with this name.
fn is_or_sets(attribute: &Meta, name: &str) -> bool {
    let Meta::List(list) = attribute else { return attribute.path().is_ident(name) };
    let by_comma = syn::punctuated::Punctuated::<Meta, syn::Token![,]>::parse_terminated;
    let sets =
        |parts: syn::punctuated::Punctuated<Meta, _>| parts.iter().skip(1).any(|it| is_or_sets(it, name));
    let is_conditional = attribute.path().is_ident("cfg_attr");
    attribute.path().is_ident(name)
        || (is_conditional && syn::parse::Parser::parse2(by_comma, list.tokens.clone()).is_ok_and(sets))
}

/// Whether the condition of a `cfg` holds only in tests.
fn needs_test(condition: &Meta) -> bool {
    let Meta::List(list) = condition else { return condition.path().is_ident("test") };
    let by_comma = syn::punctuated::Punctuated::<Meta, syn::Token![,]>::parse_terminated;
    let Ok(parts) = syn::parse::Parser::parse2(by_comma, list.tokens.clone()) else { return false };
    match list.path.get_ident().map(plain).as_deref() {
        Some("all") => parts.iter().any(needs_test),
        Some("any") => !parts.is_empty() && parts.iter().all(needs_test),
        _ => false,
    }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(it) => &it.attrs,
        Item::Enum(it) => &it.attrs,
        Item::Fn(it) => &it.attrs,
        Item::Impl(it) => &it.attrs,
        Item::Macro(it) => &it.attrs,
        Item::Mod(it) => &it.attrs,
        Item::Static(it) => &it.attrs,
        Item::Struct(it) => &it.attrs,
        Item::Trait(it) => &it.attrs,
        Item::Type(it) => &it.attrs,
        Item::Use(it) => &it.attrs,
        _ => &[],
    }
}

/// The name of an item, and whether it is a type, which may precede `::`.
fn name_of(item: &Item) -> Option<(String, bool)> {
    let (name, is_type) = match item {
        Item::Const(it) => (&it.ident, false),
        Item::Enum(it) => (&it.ident, true),
        Item::Fn(it) => (&it.sig.ident, false),
        Item::Macro(it) => (it.ident.as_ref()?, false),
        Item::Static(it) => (&it.ident, false),
        Item::Struct(it) => (&it.ident, true),
        Item::Trait(it) => (&it.ident, true),
        Item::Type(it) => (&it.ident, true),
        Item::Union(it) => (&it.ident, true),
        _ => return None,
    };
    Some((plain(name), is_type))
}

/// Adds the paths and the called methods among the tokens of a macro or an attribute.
fn add_names(mut at: Cursor, contents: &mut Contents) {
    let mut before = ' ';
    while !at.eof() {
        let mut punct = ' ';
        if let Some((name, after)) = at.ident() {
            let mut path = vec![plain(&name)];
            at = after;
            while let Some((name, after)) = segment(at) {
                path.push(plain(&name));
                at = after;
            }
            // A single name after a dot is a field or a called method.
            if path.len() > 1 || before != '.' {
                contents.paths.push(path);
            } else if at.any_group().is_some() {
                contents.called_methods.extend(path);
            }
        } else if let Some((inside, _, _, after)) = at.any_group() {
            add_names(inside, contents);
            at = after;
        } else {
            punct = at.punct().map_or(' ', |(punct, _)| punct.as_char());
            let Some((_, after)) = at.token_tree() else { break };
            at = after;
        }
        before = punct;
    }
}

/// Reads `::name`.
fn segment(at: Cursor) -> Option<(syn::Ident, Cursor)> {
    colon(colon(at)?)?.ident()
}

fn colon(at: Cursor) -> Option<Cursor> {
    let (punct, after) = at.punct()?;
    (punct.as_char() == ':').then_some(after)
}

fn strings_in(mut at: Cursor) -> Vec<syn::LitStr> {
    let mut strings = Vec::new();
    while let Some((token, after)) = at.token_tree() {
        if let Some((inside, ..)) = at.any_group() {
            strings.extend(strings_in(inside));
        } else {
            strings.extend(syn::parse_str(&token.to_string()));
        }
        at = after;
    }
    strings
}
