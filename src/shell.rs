//! Words for a person at a shell: commands that can be pasted, sizes.

/// How the user starts this program from where she stands, for hints that can be pasted.
pub fn this_program() -> String {
    let exe = std::env::current_exe().ok();
    let on_path = which::which("orchestrate").ok().and_then(|path| path.canonicalize().ok());
    if on_path.is_some() && on_path == exe {
        return "orchestrate".into();
    }
    let here = std::env::current_dir().ok();
    let relative = exe.as_deref().zip(here.as_deref()).and_then(|(exe, here)| exe.strip_prefix(here).ok());
    match (relative, &exe) {
        (Some(relative), _) => pasteable(&[format!("./{}", relative.display())]),
        (None, Some(exe)) => pasteable(&[exe.display().to_string()]),
        (None, None) => "orchestrate".into(),
    }
}

/// A command as a shell takes it.
pub fn pasteable(command: &[String]) -> String {
    let plain = |it: char| it.is_alphanumeric() || "-_./=:,+@%".contains(it);
    let word = |word: &String| match word.is_empty() || !word.chars().all(plain) {
        true => format!("'{}'", word.replace('\'', r"'\''")),
        false => word.clone(),
    };
    command.iter().map(word).collect::<Vec<_>>().join(" ")
}

/// `2.9 GB`, `111 MB`.
pub fn megabytes(megabytes: u64) -> String {
    match megabytes {
        1000.. => format!("{:.1} GB", megabytes as f64 / 1000.0),
        _ => format!("{megabytes} MB"),
    }
}
