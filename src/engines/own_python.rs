//! Notices about engines that run in the user's own Python.

use paths::{OwnPython, Python};

use crate::engines::manifest::Engine;
use crate::engines::registry::Registry;

/// A notice for each of these engines whose worker runs in another Python than its pinned one.
pub fn notices<'a>(registry: &Registry, names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut engines: Vec<&Engine> = names.filter_map(|name| engine_called(registry, name)).collect();
    engines.sort_by_key(|engine| &engine.manifest.name);
    engines.dedup_by_key(|engine| &engine.manifest.name);
    let owned = engines.into_iter().filter_map(|engine| Some((engine, of(engine)?)));
    owned
        .map(|(engine, OwnPython { variable, interpreter })| {
            format!(
                "`{}` runs in `{}` ({variable}), not in its pinned environment, so its versions are not the pinned ones",
                engine.manifest.name,
                interpreter.display()
            )
        })
        .collect()
}

pub fn of(engine: &Engine) -> Option<OwnPython> {
    match engine.python() {
        Some(Ok(Python::Own(own))) => Some(own),
        _ => None,
    }
}

/// The engine by its name or its program's name. A program given by its path uses the same variables.
pub fn engine_called<'a>(registry: &'a Registry, name: &str) -> Option<&'a Engine> {
    registry.engines.iter().find(|it| it.manifest.name == name || it.manifest.binary == name)
}
