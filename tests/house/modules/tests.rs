use std::collections::BTreeSet;

use super::{Graph, Module, Scope, cycles, has_path_prefix};

const ROOT: (&str, &str) = ("main.rs", "mod a; mod b; mod c;");
const B: (&str, &str) = ("b.rs", "pub struct T; pub fn f() {} pub fn g() {}");
const C: (&str, &str) = ("c.rs", "pub struct U; pub fn h() {}");

/// Returns a function that reads these files of a crate, each given as a path and a text.
fn reading_function(files: &[(&str, &str)]) -> impl Fn(&str) -> Option<String> {
    move |path| files.iter().find(|(file, _)| *file == path).map(|(_, text)| text.to_string())
}

/// The edges of a crate with these files, as `a -> b`. Edges between a module and another inside it are left out.
fn needs_of(scope: Scope, files: &[(&str, &str)]) -> Vec<String> {
    let read = reading_function(files);
    let edges = Graph::new(scope, &read).edges();
    let shown = |module: &Module| if module.is_empty() { "crate".into() } else { module.join("::") };
    let pairs = edges.iter().flat_map(|(from, targets)| targets.iter().map(move |to| (from, to)));
    let separate = pairs.filter(|(from, to)| !from.starts_with(to) && !to.starts_with(from));
    separate.map(|(from, to)| format!("{} -> {}", shown(from), shown(to))).collect()
}

fn needs(files: &[(&str, &str)]) -> Vec<String> {
    needs_of(Scope::Program, files)
}

#[test]
fn the_graph_follows_groups_renames_and_plain_paths() {
    assert_eq!(needs(&[ROOT, ("a.rs", "use crate::{b::{self, T}, c::U as V};"), B, C]), ["a -> b", "a -> c"]);
    assert_eq!(
        needs(&[ROOT, ("a.rs", "fn f() -> crate::b::T { super::c::h() }"), B, C]),
        ["a -> b", "a -> c"]
    );
    assert!(needs(&[ROOT, ("a.rs", "use std::fs; fn f(b: u8) -> u8 { fs::read(b); b }"), B, C]).is_empty());
}

#[test]
fn the_graph_follows_paths_in_macros_and_attributes() {
    let needs_of_a = |source| needs(&[ROOT, ("a.rs", source), B, C]);
    assert_eq!(needs_of_a("fn f() { format!(\"{:?}\", (1, crate::b::f())); }"), ["a -> b"]);
    assert_eq!(needs_of_a("macro_rules! m { () => { $crate::b::f() } }"), ["a -> b"]);
    assert_eq!(needs_of_a("use crate::b as other; fn f() { assert!(x.other && other::f()); }"), ["a -> b"]);
    assert_eq!(needs_of_a("struct S { #[serde(default = \"crate::b::f\")] s: u8 }"), ["a -> b"]);
    assert!(needs_of_a("fn f() { format!(\"crate::b::f() {}\", std::b::f()); }").is_empty());
}

#[test]
fn the_graph_follows_a_re_export_to_its_source() {
    let re_export = ("b.rs", "pub use crate::c::h as known; fn g() { known() }");
    assert_eq!(needs(&[ROOT, ("a.rs", ""), re_export, C]), ["b -> c"]);
    let named = ("a.rs", "fn f() { crate::b::known() }");
    assert_eq!(needs(&[ROOT, named, re_export, C]), ["a -> b", "a -> c", "b -> c"]);
    let own_child = ("b.rs", "mod d; pub use d::D;");
    assert!(needs(&[ROOT, ("a.rs", ""), own_child, ("b/d.rs", "pub struct D;"), C]).is_empty());
}

#[test]
fn the_graph_counts_super_from_the_inline_module() {
    let inline = ("a.rs", "pub mod inner { pub mod deep { fn f() { super::super::super::b::f() } } }");
    assert_eq!(needs(&[ROOT, inline, B, C]), ["a::inner::deep -> b"]);
    let child = ("a.rs", "mod inner { mod d; }");
    assert_eq!(
        needs(&[ROOT, child, ("a/inner/d.rs", "use super::super::super::c::U;"), B, C]),
        ["a::inner::d -> c"]
    );
}

#[test]
fn the_graph_follows_names_from_use_and_globs() {
    let through_parent = ("a.rs", "use crate::b; fn f() { b::f() } mod d; mod e;");
    let d = ("a/d.rs", "use crate::a; fn up() { a::e::down() }");
    let e = ("a/e.rs", "use super::*; pub fn down() { d::up(); b::g() }");
    let edges = needs(&[ROOT, through_parent, d, e, B, C]);
    assert_eq!(edges, ["a -> b", "a::d -> a::e", "a::e -> a::d", "a::e -> b"]);
    let item = ("a.rs", "use crate::b::*; struct U; fn g() {} fn h() { f(); }");
    assert_eq!(
        needs(&[ROOT, item, ("b.rs", "pub use crate::c::h as f;"), C]),
        ["a -> b", "a -> c", "b -> c"]
    );
    let local = ("a.rs", "use crate::b::*; fn f() {} fn h() { f(); }");
    assert_eq!(needs(&[ROOT, local, ("b.rs", "pub use crate::c::h as f;"), C]), ["a -> b", "b -> c"]);
    let same_name = ("a/e.rs", "use super::*; fn d() { d::up() }");
    let parent = ("a.rs", "mod d; mod e;");
    assert_eq!(needs(&[ROOT, parent, ("a/d.rs", "pub fn up() {}"), same_name, B, C]), ["a::e -> a::d"]);
    // None of these names leads to an item.
    assert!(needs(&[ROOT, ("a.rs", "use time::time; use self::x as y; use self::y as x;"), B, C]).is_empty());
}

#[test]
fn the_graph_follows_tests_only_if_requested() {
    let source = "#[cfg(test)] mod tests; #[cfg(all(test, unix))] mod more { use crate::c::U; }";
    let files = [ROOT, ("a.rs", source), ("a/tests.rs", "use crate::b::T;"), B, C];
    assert!(needs(&files).is_empty());
    assert_eq!(needs_of(Scope::ProgramAndTests, &files), ["a::more -> c", "a::tests -> b"]);
}

#[test]
fn the_graph_finds_all_imports_of_other_crates() {
    let (b, c) = (("b.rs", "pub use std::time::Instant as Stamp;"), ("c.rs", "use std::{fs, env};"));
    let names = |source| {
        let files = [ROOT, ("a.rs", source), b, c];
        let foreign = Graph::new(Scope::Program, &reading_function(&files)).foreign_paths();
        foreign[&vec!["a".to_string()]].iter().cloned().collect::<Vec<_>>()
    };
    let uses = |source, prefix| names(source).iter().any(|path| has_path_prefix(path, prefix));
    assert!(uses("use std::{fs, env};", "std::fs") && uses("use std::{fs as f};", "std::fs"));
    assert!(uses("fn f() { ::std::fs::read(p); }", "std::fs") && uses("use ::std::fs;", "std::fs"));
    assert!(uses("use std::time; fn f() { time::Instant::now() }", "std::time::Instant"));
    assert!(uses("use std::*; fn f() { fs::read(p) }", "std::fs"));
    assert!(uses("use crate::b::Stamp; fn f() { Stamp::now() }", "std::time::Instant"));
    assert!(uses("use crate::b; fn f() { b::Stamp::now() }", "std::time::Instant"));
    assert!(uses("fn f() { print(tokio::time::now()) }", "tokio"));
    assert!(uses("fn f() { log!(std::env::args()) }", "std::env"));
    assert!(!uses("use std::time::Duration; use std::fsx; mod fs { } fn f() { fs::g() }", "std::fs"));
    assert!(!uses("#[cfg(test)] mod tests { use std::fs; }", "std::fs"));
    assert_eq!(names("use x::{self, Y as Z}; fn f() { Z::g() }"), ["x", "x::Y", "x::Y::g"]);
    // A function and its module have the same name.
    assert_eq!(names("mod d { pub fn d() {} } pub use d::d; fn f() { d::d() }"), [""; 0]);
    // A child gets a name from its parent by a glob.
    let parent = ("a.rs", "use std::env; mod d;");
    let files = [ROOT, parent, ("a/d.rs", "use super::*; fn f() { env::args() }"), B, C];
    let foreign = Graph::new(Scope::Program, &reading_function(&files)).foreign_paths();
    assert!(foreign[&vec!["a".to_string(), "d".to_string()]].contains("std::env::args"));
}

#[test]
fn modules_that_need_each_other_form_a_cycle() {
    let module = |name: &str| vec![name.to_string()];
    let needs = |names: &[&str]| names.iter().map(|name| module(name)).collect::<BTreeSet<_>>();
    let edges = [("a", needs(&["b"])), ("b", needs(&["a", "c"])), ("c", needs(&[]))];
    let edges = edges.into_iter().map(|(name, needs)| (module(name), needs)).collect();
    assert_eq!(cycles(&edges), BTreeSet::from([needs(&["a", "b"])]));
}

#[test]
fn callers_of_a_method_need_the_module_of_its_impl() {
    let root = ("main.rs", "mod a;");
    let types = ("a/b.rs", "pub struct T;");
    let outside =
        ("a/c.rs", "use super::b::T; impl T { pub fn size(self) -> u8 { super::d::f() } pub fn of() {} }");
    let needs_with =
        |caller| needs(&[root, ("a.rs", "mod b; mod c; mod d;"), types, outside, ("a/d.rs", caller)]);
    let by_dot = needs_with("use super::b::T; pub fn f() {} fn g(t: T) -> u8 { t.size() }");
    assert_eq!(by_dot, ["a::c -> a::b", "a::c -> a::d", "a::d -> a::b", "a::d -> a::c"]);
    assert_eq!(needs_with("use super::b::T; pub fn f() { assert!(T::of() == ()) }"), by_dot);
    assert_eq!(needs_with("use super::b::T; pub fn f(t: T) { println!(\"{}\", t.size()) }"), by_dot);
    // Neither a field nor a method of another type leads to `a::c`.
    assert_eq!(
        needs_with("use super::b::T; pub fn f(t: T) { t.size; format!(\"{}\", t.size) }"),
        by_dot[..3]
    );
    assert_eq!(needs_with("pub fn f(t: U) { t.size() }"), by_dot[..2]);
}

#[test]
fn an_impl_in_a_parent_or_child_of_its_types_module_is_recognised() {
    let root = ("main.rs", "mod a;");
    let child = ("a/b.rs", "use super::T; pub struct U; impl T {} impl U {} impl Clone for super::c::V {}");
    let sibling = ("a/c.rs", "pub struct V; impl super::b::U {}");
    let files = [root, ("a.rs", "mod b; mod c; pub struct T; impl b::U {}"), child, sibling];
    let outside = Graph::new(Scope::Program, &reading_function(&files)).outside_impls();
    let found: Vec<_> = outside
        .iter()
        .map(|it| (it.module.join("::"), it.type_name.as_str(), it.is_parent_or_child()))
        .collect();
    assert_eq!(found, [("a".into(), "U", true), ("a::b".into(), "T", true), ("a::c".into(), "U", false)]);
}

#[test]
fn a_child_that_imports_from_its_parent_forms_a_cycle() {
    let root = ("main.rs", "mod a;");
    let cycle_members = |parent, child| {
        let files = [root, ("a.rs", parent), ("a/b.rs", child), ("a/c.rs", "pub struct T;")];
        let cycles = cycles(&Graph::new(Scope::Program, &reading_function(&files)).edges());
        cycles.into_iter().flatten().map(|it| it.join("::")).collect::<Vec<_>>()
    };
    let (cycle, none) = (["a", "a::b"].map(String::from).to_vec(), Vec::<String>::new());
    assert_eq!(cycle_members("mod b; mod c; pub fn f() { b::g() }", "pub fn g() { super::f() }"), cycle);
    assert_eq!(
        cycle_members("mod b; mod c; pub struct T; fn f() { b::g() }", "pub fn g(_: super::T) {}"),
        cycle
    );
    assert_eq!(
        cycle_members("mod b; mod c; pub use c::T; fn f() { b::g() }", "pub fn g(_: super::T) {}"),
        cycle
    );
    assert_eq!(
        cycle_members("mod b; mod c; pub use c::T; fn f() { b::g() }", "pub fn g(_: super::c::T) {}"),
        none
    );
    assert_eq!(cycle_members("mod b; mod c; pub fn f() {}", "pub fn g() { super::f() }"), none);
}

#[test]
#[should_panic(expected = "does not follow `#[path]`")]
fn the_graph_refuses_a_path_under_a_condition() {
    needs(&[("main.rs", "#[cfg_attr(unix, allow(unused), path = \"b.rs\")] mod a;"), B]);
}

#[test]
#[should_panic(expected = "does not follow `include!`")]
fn the_graph_refuses_source_text_that_is_included() {
    needs(&[("main.rs", "mod a;"), ("a.rs", "include!(\"b.rs\");"), B]);
}

#[test]
fn data_written_by_the_build_may_be_included() {
    let source = "const A: &[u8] = include!(concat!(env!(\"OUT_DIR\"), \"/a.rs\")); const B: &str = include_str!(\"b.rs\");";
    assert!(needs(&[("main.rs", "mod a;"), ("a.rs", source)]).is_empty());
}
