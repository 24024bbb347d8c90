//! The axes of a scenario: the numbers and settings in which its workloads vary. A workload has one value of each axis.
//! To add an axis: add an entry to `axes!`, the field of `Point` or `Shape` that holds its value, its default in
//! `Shape::default`, and an implementation of `Value` if its type is new. `Prompts::request` puts it into a request, and
//! `run/case.rs` checks that an engine supports it. Options, keys of run files and labels come from the entry.

mod shape;

use clap::Args;
use protocol::{Padding, Speculation};

use super::arrivals::{Burstiness, MAX_REQUESTS, Rate, RoundLength};
use super::length_files::{LengthFile, MAX_TOKENS};
use super::lengths::{self, Lengths};
use super::texts::Text;
use super::traces::Trace;
use crate::shell::{choice_parser, pasteable, whole_number};
pub use shape::{PageCache, Shape};

const MAX_BATCH: u32 = 1024;
const MAX_TURNS: u32 = 1024;
/// The axes of lengths.
const LENGTHS: [&str; 2] = ["prompt_tokens", "new_tokens"];
/// The names on the command line and in the protocol.
const PADDINGS: [(&str, Padding); 3] =
    [("left", Padding::Left), ("right", Padding::Right), ("packed", Padding::Packed)];
/// The names on the command line and in the protocol.
const SPECULATIONS: [(&str, Speculation); 2] =
    [("off", Speculation::Off), ("prompt_lookup", Speculation::PromptLookup)];

/// The names on the command line and in records.
const PAGE_CACHES: [(&str, PageCache); 2] = [("kept", PageCache::Kept), ("dropped", PageCache::Dropped)];

/// The values that a workload's label names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Named {
    /// Those of an axis with several values.
    Varying,
    /// Those of an axis with several values, and a single value that differs from the scenario's own.
    Unusual,
    /// Like `Unusual`, but never the default value: the usual request keeps its short label in a sweep.
    NotDefault,
}

/// A value of an axis, in words.
pub trait Value: Copy + PartialEq {
    /// The value as the command line and the protocol name it.
    fn word(self) -> String;

    /// The value in labels and descriptions.
    fn shown(self) -> String {
        self.word()
    }
}

/// Defines the axes: the types with a list for each axis, the options of the command line, and the functions over all axes.
/// `$field` is the path of the value in a `Point`. A label has `$prefix` before the value.
macro_rules! axes {
    ($($(#[$help:meta])* $axis:ident: $value:ty, $($field:ident).+, $title:literal, $named:expr, $prefix:literal;)+) => {
        /// The values of each axis. An empty list in a selection leaves the values of the scenario.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Axes<'a> { $(pub $axis: &'a [$value],)+ }

        /// The values of each axis that the user set. An empty list leaves the values of the scenario.
        #[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
        pub struct AxisValues { $($(#[$help])* #[arg(long, value_delimiter = ',')] pub $axis: Vec<$value>,)+ }

        impl<'a> Axes<'a> {
            /// No values of any axis.
            pub const NONE: Self = Self { $($axis: &[],)+ };

            /// These axes, with the values of `set` where it has some.
            pub fn with(self, set: Axes<'a>) -> Self {
                Self { $($axis: if set.$axis.is_empty() { self.$axis } else { set.$axis },)+ }
            }

            /// The values of both for each axis. If only one of the two has values of an axis, the axis's default value is
            /// added.
            pub fn joined(self, other: Axes) -> Axes<'static> {
                AxisValues { $($axis: {
                    let of = |values: &[$value]| match values {
                        [] => list::<$value>(Point::default().$($field).+),
                        values => values.to_vec(),
                    };
                    match (self.$axis, other.$axis) {
                        ([], []) => Vec::new(),
                        (own, other) => distinct(&[of(own), of(other)].concat()),
                    }
                },)+ }
                .leak()
            }

            /// The cross product of all values, in the order of the axes.
            pub fn points(self) -> Vec<Point> {
                let mut points = vec![Point::default()];
                $(if !self.$axis.is_empty() {
                    let of = |point: Point| self.$axis.iter().map(move |&value| {
                        let mut point = point;
                        point.$($field).+ = value.into();
                        point
                    });
                    points = points.into_iter().flat_map(of).collect();
                })+
                points.iter_mut().for_each(Point::derive);
                points
            }

            /// The values of all axes: `prompt tokens: 16, 128; new tokens: 1`.
            pub fn describe(self) -> String {
                let axes = [$(($title, self.$axis.iter().map(|it| it.shown()).collect::<Vec<_>>()),)+];
                let axes = axes.into_iter().filter(|(_, values)| !values.is_empty());
                axes.map(|(axis, values)| format!("{axis}: {}", values.join(", "))).collect::<Vec<_>>().join("; ")
            }

            /// The options whose values none of these scenarios uses. A scenario may use only the first value.
            pub fn unused(&self, used: &[Axes]) -> Vec<String> {
                let is_used = [$((stringify!($axis), self.$axis.is_empty()
                    || used.iter().any(|it| it.$axis.first() == self.$axis.first())),)+];
                let unused = is_used.into_iter().filter(|(_, is_used)| !is_used);
                unused.map(|(axis, _)| format!("--{}", axis.replace('_', "-"))).collect()
            }

            /// The values of a point that a workload's label names: `128`, `batch 4`, or `cache off` and `left` (the padding).
            /// `own`: the axes of the scenario.
            pub fn words_of(self, point: &Point, own: &Axes) -> Vec<String> {
                let mut words = Vec::new();
                $(
                    let (default, value) = (list(Point::default().$($field).+), list::<$value>(point.$($field).+));
                    let of_scenario = if own.$axis.is_empty() { &default[..] } else { own.$axis };
                    if is_named($named, self.$axis, of_scenario, &default, &value) {
                        words.extend(value.iter().map(|&it| format!("{}{}", $prefix, it.shown())));
                    }
                )+
                words
            }
        }

        impl AxisValues {
            /// The same lists with each value once.
            pub fn distinct(&self) -> Self {
                Self { $($axis: distinct(&self.$axis),)+ }
            }

            /// The values of these points, each once.
            pub fn of_points(points: &[Point]) -> Self {
                let values = Self { $($axis: points.iter().flat_map(|it| list::<$value>(it.$($field).+)).collect(),)+ };
                values.distinct()
            }

            pub fn axes(&self) -> Axes<'_> {
                Axes { $($axis: &self.$axis,)+ }
            }

            /// The same lists, which are never freed, as those of SCENARIOS.
            pub fn leak(self) -> Axes<'static> {
                Axes { $($axis: self.$axis.leak(),)+ }
            }

            /// For each axis, the values that all scenarios use. The list is empty if scenarios use different values, or if
            /// each has these values without an option. A pair has a scenario's own values, and the values that it uses.
            pub fn shared(pairs: &[(Self, Self)]) -> Self {
                Self { $($axis: shared(pairs.iter().map(|(own, used)| (&own.$axis[..], &used.$axis[..])).collect()),)+ }
            }

            /// The options of the command line that set these values.
            pub fn options(&self) -> Vec<String> {
                let lists = [$((stringify!($axis), self.$axis.iter().map(|it| it.word()).collect::<Vec<_>>()),)+];
                let has_own_lengths = !self.trace.is_empty() || self.axes().length_file().is_some();
                let is_given = |(axis, values): &(&str, Vec<String>)| {
                    !values.is_empty() && !(has_own_lengths && LENGTHS.contains(axis))
                };
                let lists = lists.into_iter().filter(is_given);
                let option = |(axis, values): (&str, Vec<String>)| {
                    format!("--{} {}", axis.replace('_', "-"), pasteable(&[values.join(",")]))
                };
                lists.map(option).collect()
            }
        }

        impl Point {
            /// The title of each axis, with its value here.
            fn values(&self) -> Vec<(&'static str, String)> {
                let none = || "none".to_string();
                vec![$(($title, list::<$value>(self.$($field).+).first().map_or_else(none, |&it| it.shown())),)+]
            }
        }
    };
}

axes! {
    /// Lengths of prompts in tokens, separated by commas; default: the scenario's lengths
    #[arg(value_name = "N", value_parser = whole_number(1, MAX_TOKENS))]
    prompt_tokens: u32, prompt_tokens, "prompt tokens", Named::Varying, "";
    /// Numbers of tokens to generate, separated by commas (`load` takes the first); default: the scenario's numbers
    #[arg(value_name = "N", value_parser = whole_number(1, MAX_TOKENS), alias = "max-new-tokens")]
    new_tokens: u32, new_tokens, "new tokens", Named::Varying, "new ";
    /// Numbers of tokens before the prompt, whose keys and values each step reads, separated by commas; default: the scenario's
    #[arg(value_name = "N", value_parser = whole_number(0, MAX_TOKENS))]
    depth: u32, shape.depth, "depth", Named::NotDefault, "depth ";
    /// Numbers of sequences in a request, separated by commas; default: the scenario's, mostly 1
    #[arg(value_name = "N", value_parser = whole_number(1, MAX_BATCH))]
    batch: u32, shape.batch, "batch", Named::Unusual, "batch ";
    /// Whether engines keep keys and values of earlier tokens: `true`, `false`, or both; default: the scenario's, mostly `true`
    #[arg(value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    use_cache: bool, shape.use_cache, "cache", Named::Unusual, "cache ";
    /// Sides of the padding in batches of uneven prompts, separated by commas; default: even prompts without padding
    #[arg(value_name = "SIDE", value_parser = choice_parser(PADDINGS))]
    padding: Padding, shape.padding, "padding", Named::Unusual, "";
    /// How engines draft tokens, separated by commas: `off`, `prompt_lookup`; only in `speculative`, default: both
    #[arg(value_name = "KIND", value_parser = choice_parser(SPECULATIONS))]
    speculation: Speculation, shape.speculation, "speculation", Named::Unusual, "";
    /// Whether the model's files stay in the page cache before a launch, separated by commas: `kept`, `dropped` (read from the disk
    /// again); only in `load`, default: both, in the default suite `kept`
    #[arg(value_name = "KIND", value_parser = choice_parser(PAGE_CACHES))]
    page_cache: PageCache, shape.page_cache, "files", Named::NotDefault, "";
    /// Numbers of users, separated by commas; each sends a request when the one before is answered; default: in `serve` 1,2,4,8, in
    /// `offline` as many as requests
    #[arg(value_name = "N", value_parser = whole_number(1, MAX_REQUESTS), conflicts_with = "request_rate")]
    concurrency: u32, shape.concurrency, "concurrency", Named::Varying, "";
    /// Requests per second, separated by commas, whether or not earlier ones are answered; default: `--concurrency`; only in `serve`.
    /// `highest` searches for the highest rate within the limits of `--slo`
    #[arg(value_name = "RATE")]
    request_rate: Rate, shape.request_rate, "request rate", Named::Unusual, "";
    /// How regularly the requests of `--request-rate` arrive, separated by commas: `1` at random (Poisson), below 1 in bursts, above 1
    /// more regularly, `even` at equal times; default: 1
    #[arg(value_name = "SHAPE", requires = "request_rate")]
    burstiness: Burstiness, shape.burstiness, "burstiness", Named::NotDefault, "burstiness ";
    /// Lengths of a round, separated by commas, as in `30s`. In `stress`: the time in use; default: 10m. In `serve` with
    /// `--request-rate`: the time of all arrivals; default: that of 16 requests
    #[arg(value_name = "TIME", conflicts_with_all = ["requests", "trace"])]
    duration: RoundLength, shape.duration, "duration", Named::Unusual, "";
    /// Files of recorded requests, separated by commas, in place of `--request-rate`; default: none; only in `serve`. A line has seconds
    /// or a date, prompt tokens, new tokens: `0.25,120,64`
    #[arg(value_name = "FILE", conflicts_with_all = ["concurrency", "request_rate", "requests", "lengths", "prompt_tokens", "new_tokens"])]
    trace: Trace, shape.trace, "trace", Named::Unusual, "";
    /// Numbers of requests in a round, separated by commas; default: in `serve` four for each user, or 16 at a rate; in `offline` 16
    #[arg(value_name = "N", value_parser = whole_number(1, MAX_REQUESTS))]
    requests: u32, shape.requests, "requests", Named::Unusual, "requests ";
    /// How lengths vary in `serve` and `offline`, separated by commas: `quarters` (prompts of four lengths), `even` (all equal),
    /// `uniform`, `lognormal` (many short, few long), or a file with the lengths of real requests; default: `quarters`. A line of the
    /// file has prompt tokens and new tokens: `120,64`
    #[arg(value_name = "KIND|FILE")]
    lengths: Lengths, shape.lengths, "lengths", Named::NotDefault, "";
    /// Numbers of tokens before each prompt that all requests of a round share, separated by commas, as those of a system prompt;
    /// prefix caches are then allowed; only in `serve` and `offline`, default: 0
    #[arg(value_name = "N", value_parser = whole_number(0, MAX_TOKENS), conflicts_with = "trace")]
    shared_prefix: u32, shape.shared_prefix, "shared prefix", Named::NotDefault, "shared prefix ";
    /// Numbers of requests in a conversation, separated by commas: each one repeats the one before it, with the engine's own answer and a
    /// new text; prefix caches are then allowed; only in `serve` and `offline`, default: 1
    #[arg(value_name = "N", value_parser = whole_number(1, MAX_TURNS), conflicts_with = "trace")]
    turns: u32, shape.turns, "turns", Named::NotDefault, "turns ";
    /// Kinds of text, or files of prompts, separated by commas (see `orchestrate scenarios`); default: the scenario's, mostly `natural`
    #[arg(value_name = "KIND|FILE")]
    prompts: Text, text, "prompts", Named::NotDefault, "";
}

/// One value of each axis.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Point {
    /// The length of the prompt. In a batch of uneven prompts, this is the length of the longest.
    pub prompt_tokens: u32,
    /// The tokens to generate for each sequence.
    pub new_tokens: u32,
    pub text: Text,
    pub shape: Shape,
}

impl<'a> Axes<'a> {
    /// Axes with these lengths of prompts and outputs, and the default of every other axis.
    pub const fn of(prompt_tokens: &'a [u32], new_tokens: &'a [u32]) -> Self {
        Self { prompt_tokens, new_tokens, ..Self::NONE }
    }

    /// The first file that gives the lengths of prompts and outputs.
    pub fn length_file(&self) -> Option<LengthFile> {
        self.lengths.iter().find_map(|it| it.file())
    }
}

#[cfg(test)]
impl AxisValues {
    pub fn with_new_tokens(new_tokens: u32) -> Self {
        Self { new_tokens: vec![new_tokens], ..Self::default() }
    }
}

impl Point {
    /// Sets the values that follow from others.
    fn derive(&mut self) {
        self.shape.text = self.text.kind();
        self.shape.prefix_cache = self.shape.shared_prefix > 0 || self.shape.turns > 1;
        if let Some(longest) = self.shape.longest_of_file() {
            (self.prompt_tokens, self.new_tokens) = (longest.prompt_tokens, longest.new_tokens);
        }
    }

    /// The tokens of the prompt that is sent.
    pub fn all_prompt_tokens(&self) -> u32 {
        self.shape.tokens_before_prompt().saturating_add(self.prompt_tokens)
    }
}

impl Value for u32 {
    fn word(self) -> String {
        self.to_string()
    }
}

impl Value for bool {
    fn word(self) -> String {
        self.to_string()
    }

    fn shown(self) -> String {
        if self { "on".into() } else { "off".into() }
    }
}

impl Value for Padding {
    fn word(self) -> String {
        name_in(&PADDINGS, self)
    }
}

impl Value for Speculation {
    fn word(self) -> String {
        name_in(&SPECULATIONS, self)
    }

    fn shown(self) -> String {
        match self {
            Self::Off => "no drafts".into(),
            drafts => drafts.word().replace('_', " "),
        }
    }
}

impl Value for PageCache {
    fn word(self) -> String {
        name_in(&PAGE_CACHES, self)
    }

    fn shown(self) -> String {
        match self {
            Self::Kept => "from memory".into(),
            Self::Dropped => "from disk".into(),
        }
    }
}

impl Value for Rate {
    fn word(self) -> String {
        self.per_second().map_or_else(|| "highest".into(), |rate| rate.to_string())
    }

    fn shown(self) -> String {
        self.per_second().map_or_else(|| "highest rate".into(), |rate| format!("{rate}/s"))
    }
}

impl Value for Burstiness {
    fn word(self) -> String {
        self.into()
    }
}

impl Value for RoundLength {
    fn word(self) -> String {
        self.into()
    }
}

impl Value for Trace {
    fn word(self) -> String {
        self.path().into()
    }

    fn shown(self) -> String {
        self.name()
    }
}

impl Value for Lengths {
    fn word(self) -> String {
        self.file().map_or_else(|| name_in(&lengths::NAMES, self), |file| file.path().into())
    }

    fn shown(self) -> String {
        match self {
            Self::Even => "even lengths".into(),
            Self::File(file) => file.name(),
            other => other.word(),
        }
    }
}

impl Value for Text {
    fn word(self) -> String {
        match self {
            Self::Kind(kind) => kind.word().into(),
            Self::File(file) => file.path.clone(),
        }
    }

    fn shown(self) -> String {
        self.name()
    }
}

/// The one setting in which two shapes differ, with the value of each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingDifference {
    pub setting: &'static str,
    pub value: String,
    pub other: String,
    /// Whether the other one has the default value.
    pub other_is_default: bool,
}

/// The value of an axis as a list, which is empty if the axis has no value.
fn list<T>(value: impl Into<Option<T>>) -> Vec<T> {
    value.into().into_iter().collect()
}

fn distinct<T: PartialEq + Copy>(values: &[T]) -> Vec<T> {
    let is_first = |(index, value): &(usize, &T)| !values[..*index].contains(value);
    values.iter().enumerate().filter(is_first).map(|(_, value)| *value).collect()
}

fn is_named<T: PartialEq>(named: Named, values: &[T], own: &[T], default: &[T], value: &[T]) -> bool {
    let is_unusual = values.len() > 1 || values.len() == 1 && values != own;
    match named {
        Named::Varying => values.len() > 1,
        Named::Unusual => is_unusual,
        Named::NotDefault => is_unusual && value != default,
    }
}

fn shared<T: PartialEq + Clone>(lists: Vec<(&[T], &[T])>) -> Vec<T> {
    let same = |a: &[T], b: &[T]| a.iter().all(|it| b.contains(it)) && b.iter().all(|it| a.contains(it));
    let Some((_, used)) = lists.iter().max_by_key(|(_, used)| used.len()) else { return Vec::new() };
    // A scenario that measures launches uses only the first value.
    let is_shared = |(_, other): &(&[T], &[T])| same(used, other) || *other == &used[..1.min(used.len())];
    let is_set = lists.iter().any(|(own, used)| !same(own, used));
    if is_set && lists.iter().all(is_shared) { used.to_vec() } else { Vec::new() }
}

fn name_in<T: PartialEq>(names: &[(&str, T)], value: T) -> String {
    names.iter().find(|(_, known)| *known == value).map_or_else(String::new, |(name, _)| name.to_string())
}

impl Shape {
    /// The titles of these axes, with their values here.
    pub fn values(&self) -> Vec<(&'static str, String)> {
        // The first two axes are the lengths of prompts and outputs.
        Point { shape: *self, text: Text::Kind(self.text), ..Point::default() }.values().split_off(2)
    }

    /// `None` if two shapes differ in no setting or in several, or in the text.
    pub fn only_difference(&self, other: &Self) -> Option<SettingDifference> {
        let pairs = self.values().into_iter().zip(other.values());
        let mut differing = pairs.zip(Self::default().values()).filter(|((own, other), _)| own.1 != other.1);
        let (((setting, value), (_, other_value)), (_, default)) = differing.next()?;
        let is_only = differing.next().is_none() && self.text == other.text;
        let other_is_default = other_value == default;
        is_only.then_some(SettingDifference { setting, value, other: other_value, other_is_default })
    }
}

#[cfg(test)]
mod tests;
