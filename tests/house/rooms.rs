//! The rooms of `src`, by the real module graph: every `use` and every path, with re-exports followed. A room uses those below
//! it and none above. A module and those inside it are one subject; modules that stand side by side never need each other in a
//! circle.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree, Visibility};

use crate::support::root;
use crate::support::tree::{text, tracked};

/// From the top to the bottom. `src/README.md` says what each is for.
const ROOMS: &[&str] = &[
    "commands", "cli", "report", "run", "analysis", "record", "plan", "engines", "machine", "shell", "text",
];

/// Modules side by side that need each other, with the reason.
const CIRCLES: &[(&[&str], &str)] = &[];

type Module = Vec<String>;

/// The modules of the program, without those that only tests have.
#[derive(Default)]
struct Graph {
    /// Paths below `src/`.
    files: BTreeMap<Module, String>,
    /// What each names, as it is written but from the crate's root.
    names: BTreeMap<Module, Vec<Module>>,
    /// What `pub use` gives another path.
    exports: BTreeMap<Module, Module>,
}

impl Graph {
    fn of_program() -> Self {
        let mut graph = Self::default();
        graph.add(Vec::new(), "main.rs");
        graph
    }

    fn add(&mut self, module: Module, file: &str) {
        let source = text(&format!("src/{file}")).unwrap_or_else(|| panic!("no file `src/{file}`"));
        let parsed = syn::parse_file(&source).unwrap_or_else(|error| panic!("src/{file}: {error}"));
        let children: BTreeSet<String> = parsed.items.iter().filter_map(child).collect();
        let mut reader =
            Reader { module: &module, children: &children, names: Vec::new(), exports: Vec::new() };
        reader.visit_file(&parsed);
        let Reader { names, exports, .. } = reader;
        self.files.insert(module.clone(), file.to_string());
        self.names.insert(module.clone(), names);
        self.exports.extend(exports);
        let folder = match file.strip_suffix("mod.rs") {
            Some(folder) => folder.to_string(),
            None if file == "main.rs" => String::new(),
            None => format!("{}/", file.trim_end_matches(".rs")),
        };
        for name in children {
            let own = [format!("{folder}{name}.rs"), format!("{folder}{name}/mod.rs")];
            let file = own.iter().find(|file| root().join("src").join(file).is_file());
            let file = file.unwrap_or_else(|| panic!("no file for the module `{name}`: {own:?}"));
            self.add([&module[..], &[name]].concat(), file);
        }
    }

    /// The modules that each one needs.
    fn edges(&self) -> BTreeMap<&Module, BTreeSet<&Module>> {
        let needed = |module: &Module, names: &Vec<Module>| {
            let found = names.iter().filter_map(|name| self.home(name.clone()));
            found.filter(|home| *home != module).collect()
        };
        self.names.iter().map(|(module, names)| (module, needed(module, names))).collect()
    }

    /// For each module: which of those directly inside it need which others of them, each with all that is inside it.
    fn side_by_side(&self) -> BTreeMap<Module, BTreeMap<Module, BTreeSet<Module>>> {
        let mut levels: BTreeMap<Module, BTreeMap<Module, BTreeSet<Module>>> = BTreeMap::new();
        for (module, needed) in self.edges() {
            for other in needed {
                let common = module.iter().zip(other).take_while(|(one, other)| one == other).count();
                // One of the two is inside the other.
                if common == module.len() || common == other.len() {
                    continue;
                }
                let level = levels.entry(module[..common].to_vec()).or_default();
                let (one, other) = (module[..=common].to_vec(), other[..=common].to_vec());
                level.entry(one).or_default().insert(other);
            }
        }
        levels
    }

    /// The module that a name comes from.
    fn home(&self, mut name: Module) -> Option<&Module> {
        // No re-export goes through so many others.
        for _ in 0..8 {
            let exported = (1..=name.len()).find_map(|end| Some((end, self.exports.get(&name[..end])?)));
            let Some((end, target)) = exported else { break };
            name = [&target[..], &name[end..]].concat();
        }
        (1..=name.len()).rev().find_map(|end| Some(self.files.get_key_value(&name[..end])?.0))
    }
}

/// A module in a file of its own that is there outside of tests too.
fn child(item: &Item) -> Option<String> {
    match item {
        Item::Mod(module) if module.content.is_none() && !is_of_tests(&module.attrs) => {
            Some(module.ident.to_string())
        }
        _ => None,
    }
}

fn is_of_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let list = attribute.meta.require_list();
        attribute.path().is_ident("cfg") && list.is_ok_and(|list| list.tokens.to_string() == "test")
    })
}

struct Reader<'a> {
    module: &'a Module,
    children: &'a BTreeSet<String>,
    names: Vec<Module>,
    exports: Vec<(Module, Module)>,
}

impl Reader<'_> {
    /// From the crate's root; `None` for what is of another crate, or within this module.
    fn absolute(&self, path: &[String]) -> Option<Module> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => Some(rest.to_vec()),
            "self" => Some([self.module, rest].concat()),
            "super" => {
                let ups = path.iter().take_while(|part| *part == "super").count();
                let above = &self.module[..self.module.len().checked_sub(ups)?];
                Some([above, &path[ups..]].concat())
            }
            name if self.children.contains(name) => Some([&self.module[..], path].concat()),
            _ => None,
        }
    }

    fn leaves(&mut self, tree: &UseTree, before: &[String], exported: bool) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        let (path, known_as) = match tree {
            UseTree::Path(path) => return self.leaves(&path.tree, &with(&path.ident), exported),
            UseTree::Group(group) => {
                return group.items.iter().for_each(|item| self.leaves(item, before, exported));
            }
            UseTree::Name(name) if name.ident == "self" => (before.to_vec(), before.last().cloned()),
            UseTree::Name(name) => (with(&name.ident), Some(name.ident.to_string())),
            UseTree::Rename(rename) => (with(&rename.ident), Some(rename.rename.to_string())),
            UseTree::Glob(_) => (before.to_vec(), None),
        };
        let Some(target) = self.absolute(&path) else { return };
        match known_as.filter(|_| exported) {
            // Who names it needs what it stands for.
            Some(name) => self.exports.push(([&self.module[..], &[name]].concat(), target)),
            None => self.names.push(target),
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = match item {
            Item::Mod(it) => &it.attrs,
            Item::Fn(it) => &it.attrs,
            Item::Impl(it) => &it.attrs,
            Item::Use(it) => &it.attrs,
            _ => &Vec::new(),
        };
        if !is_of_tests(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let exported = !matches!(item.vis, Visibility::Inherited);
        self.leaves(&item.tree, &[], exported);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let parts: Vec<String> = path.segments.iter().map(|it| it.ident.to_string()).collect();
        if parts.len() > 1 {
            self.names.extend(self.absolute(&parts));
        }
        visit::visit_path(self, path);
    }
}

/// Sets of modules in which each needs, by way of others, every other one.
fn circles(edges: &BTreeMap<Module, BTreeSet<Module>>) -> BTreeSet<BTreeSet<Module>> {
    let reached = |from: &Module| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(module) = next.pop() {
            for other in edges.get(module).into_iter().flatten() {
                if seen.insert(other.clone()) {
                    next.push(other);
                }
            }
        }
        seen
    };
    let all: BTreeMap<&Module, BTreeSet<Module>> = edges.keys().map(|it| (it, reached(it))).collect();
    let with = |module: &Module| {
        let back = |other: &&Module| all.get(other).is_some_and(|reached| reached.contains(module));
        all[module].iter().filter(back).cloned().collect::<BTreeSet<_>>()
    };
    all.keys().map(|module| with(module)).filter(|circle| circle.len() > 1).collect()
}

#[test]
fn every_room_is_there_and_every_file_is_in_a_room() {
    let graph = Graph::of_program();
    let found: BTreeSet<&str> =
        graph.files.keys().filter_map(|module| module.first()).map(String::as_str).collect();
    let listed: BTreeSet<&str> = ROOMS.iter().copied().collect();
    assert_eq!(found, listed, "the rooms have changed: bring ROOMS and src/README.md up to date");
    let in_graph: BTreeSet<&String> = graph.files.values().collect();
    let of_tests = |path: &str| {
        let source = text(&format!("src/{path}")).unwrap_or_default();
        // A module of tests is named in another file.
        !source.is_empty() && !in_graph.contains(&path.to_string())
    };
    let tests = tracked().into_iter().filter_map(|path| path.strip_prefix("src/").map(String::from));
    let tests = tests.filter(|path| path.ends_with(".rs") && !path.starts_with("stats/"));
    let unseen: Vec<_> = tests.filter(|path| of_tests(path)).collect();
    // As many as there are today, with room for a few: a reader that stops at an item would lose most of them.
    assert!(unseen.len() * 3 < in_graph.len(), "the module graph misses files: {unseen:?}");
}

#[test]
fn each_room_uses_those_below_it_and_none_above() {
    let graph = Graph::of_program();
    let rank = |module: &Module| ROOMS.iter().position(|room| module.first().is_some_and(|it| it == room));
    let mut upward = Vec::new();
    for (module, needed) in graph.edges() {
        for other in needed {
            // The root dispatches; nothing may need it.
            let is_up = other.is_empty() || (!module.is_empty() && rank(other) < rank(module));
            if is_up {
                upward.push(format!("src/{} needs `{}`", graph.files[module], other.join("::")));
            }
        }
    }
    assert!(upward.is_empty(), "rooms point upwards; move what both need down:\n{}", upward.join("\n"));
}

#[test]
fn modules_side_by_side_do_not_need_each_other_in_a_circle_without_a_reason() {
    let graph = Graph::of_program();
    let found: BTreeSet<BTreeSet<String>> = (graph.side_by_side().values())
        .flat_map(circles)
        .map(|circle| circle.into_iter().map(|module| module.join("::")).collect())
        .collect();
    let known: BTreeSet<BTreeSet<String>> =
        CIRCLES.iter().map(|(modules, _)| modules.iter().map(|it| it.to_string()).collect()).collect();
    let new: Vec<_> = found.difference(&known).collect();
    assert!(
        new.is_empty(),
        "modules need each other; move what both need into a third, or say why here: {new:#?}"
    );
    let gone: Vec<_> = known.difference(&found).collect();
    assert!(gone.is_empty(), "these circles are gone: take them off the list: {gone:#?}");
    assert!(CIRCLES.iter().all(|(_, reason)| !reason.is_empty()));
}

#[test]
fn the_reader_follows_groups_renames_and_re_exports_and_leaves_tests_out() {
    let source = "use crate::a::{self, b::{C, D as E}};\npub use super::x::Y;\n#[cfg(test)]\nmod tests { use crate::t::T; }\n\
                  fn f() -> crate::g::H { super::x::i(); child::k() }";
    let (module, children) = (vec!["m".to_string(), "n".to_string()], BTreeSet::from(["child".to_string()]));
    let mut reader = Reader { module: &module, children: &children, names: Vec::new(), exports: Vec::new() };
    reader.visit_file(&syn::parse_file(source).unwrap());
    let names: Vec<String> = reader.names.iter().map(|name| name.join("::")).collect();
    assert_eq!(names, ["a", "a::b::C", "a::b::D", "g::H", "m::x::i", "m::n::child::k"]);
    let exports: Vec<_> = reader.exports.iter().map(|(name, of)| (name.join("::"), of.join("::"))).collect();
    assert_eq!(exports, [("m::n::Y".to_string(), "m::x::Y".to_string())]);
    let module = |name: &str| vec![name.to_string()];
    let needs = |names: &[&str]| names.iter().map(|name| module(name)).collect::<BTreeSet<_>>();
    let edges = [("a", needs(&["b"])), ("b", needs(&["a", "c"])), ("c", needs(&[]))];
    let edges = edges.into_iter().map(|(name, needs)| (module(name), needs)).collect();
    assert_eq!(circles(&edges), BTreeSet::from([needs(&["a", "b"])]));
}
