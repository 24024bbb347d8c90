//! The axes of a scenario: the numbers and settings in which its workloads vary. A workload has one value of each axis.

use protocol::Padding;
use serde::{Deserialize, Serialize};

/// The values of each axis. An empty list in a selection leaves the values of the scenario.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Axes<'a> {
    /// The lengths of prompts. In a batch of uneven prompts, this is the length of the longest.
    pub prompt_tokens: &'a [u32],
    /// The numbers of tokens to generate for each sequence.
    pub new_tokens: &'a [u32],
    /// The numbers of tokens before the prompt. Each decode step also reads their keys and values from the cache.
    pub depth: &'a [u32],
    /// The numbers of sequences in a request.
    pub batch: &'a [u32],
    /// Whether the engine keeps keys and values of earlier tokens.
    pub use_cache: &'a [bool],
    /// The padding of a batch of uneven prompts. Empty: all prompts of a batch have the same length.
    pub padding: &'a [Padding],
}

/// The values of each axis that the user set. An empty list leaves the values of the scenario.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AxisValues {
    pub prompt_tokens: Vec<u32>,
    pub new_tokens: Vec<u32>,
    pub depth: Vec<u32>,
    pub batch: Vec<u32>,
    pub use_cache: Vec<bool>,
    pub padding: Vec<Padding>,
}

/// One value of each axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point {
    pub prompt_tokens: u32,
    pub new_tokens: u32,
    pub shape: Shape,
}

/// The values of the axes that most requests leave at their defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Shape {
    /// The tokens before the scenario's prompt, for a deep cache. The prompt that is sent has `depth + prompt_tokens` tokens.
    #[serde(skip_serializing_if = "is_zero")]
    pub depth: u32,
    #[serde(skip_serializing_if = "is_one")]
    pub batch: u32,
    #[serde(skip_serializing_if = "Clone::clone")]
    pub use_cache: bool,
    /// The padding of a batch of uneven prompts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub padding: Option<Padding>,
}

impl Default for Shape {
    fn default() -> Self {
        Self { depth: 0, batch: 1, use_cache: true, padding: None }
    }
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn is_one(number: &u32) -> bool {
    *number == 1
}

impl<'a> Axes<'a> {
    /// Axes with these lengths of prompts and outputs, and the default of every other axis.
    pub const fn of(prompt_tokens: &'a [u32], new_tokens: &'a [u32]) -> Self {
        Self { prompt_tokens, new_tokens, depth: &[], batch: &[], use_cache: &[], padding: &[] }
    }

    /// These axes, with the values of `set` where it has some.
    pub fn with(self, set: Axes<'a>) -> Self {
        fn pick<'a, T>(set: &'a [T], own: &'a [T]) -> &'a [T] {
            if set.is_empty() { own } else { set }
        }
        Self {
            prompt_tokens: pick(set.prompt_tokens, self.prompt_tokens),
            new_tokens: pick(set.new_tokens, self.new_tokens),
            depth: pick(set.depth, self.depth),
            batch: pick(set.batch, self.batch),
            use_cache: pick(set.use_cache, self.use_cache),
            padding: pick(set.padding, self.padding),
        }
    }

    /// The cross product of all values, in the order of the axes.
    pub fn points(self) -> Vec<Point> {
        let mut points = Vec::new();
        for &prompt_tokens in self.prompt_tokens {
            for &new_tokens in self.new_tokens {
                for &depth in or(self.depth, &[0]) {
                    for &batch in or(self.batch, &[1]) {
                        for &use_cache in or(self.use_cache, &[true]) {
                            let paddings: Vec<_> = self.padding.iter().copied().map(Some).collect();
                            for &padding in or(&paddings, &[None]) {
                                let shape = Shape { depth, batch, use_cache, padding };
                                points.push(Point { prompt_tokens, new_tokens, shape });
                            }
                        }
                    }
                }
            }
        }
        points
    }

    /// The values of all axes: `prompt tokens: 16, 128; new tokens: 1`.
    pub fn describe(self) -> String {
        fn list<T: ToString>(values: &[T]) -> String {
            values.iter().map(T::to_string).collect::<Vec<_>>().join(", ")
        }
        let caches: Vec<_> = self.use_cache.iter().map(|&it| if it { "on" } else { "off" }).collect();
        let paddings: Vec<_> = self.padding.iter().copied().map(padding_name).collect();
        let axes = [
            ("prompt tokens", list(self.prompt_tokens)),
            ("new tokens", list(self.new_tokens)),
            ("depth", list(self.depth)),
            ("batch", list(self.batch)),
            ("cache", list(&caches)),
            ("padding", list(&paddings)),
        ];
        let axes = axes.into_iter().filter(|(_, values)| !values.is_empty());
        axes.map(|(axis, values)| format!("{axis}: {values}")).collect::<Vec<_>>().join("; ")
    }

    /// The values of a point that vary, as a workload's label names them: `128`, `batch 4`, or `cache off` and `left` (the
    /// padding). A depth, batch, cache or padding that is not that of the scenario (`own`) is named too.
    pub fn words_of(self, point: &Point, own: &Axes) -> Vec<String> {
        let Point { prompt_tokens, new_tokens, shape } = point;
        let cache = if shape.use_cache { "on" } else { "off" };
        let padding = shape.padding.map(padding_name).unwrap_or_default();
        let differs = |is_own: bool, values: usize| values > 1 || values == 1 && !is_own;
        let words = [
            (self.prompt_tokens.len() > 1, prompt_tokens.to_string()),
            (self.new_tokens.len() > 1, format!("new {new_tokens}")),
            (differs(or(own.depth, &[0]) == self.depth, self.depth.len()), format!("depth {}", shape.depth)),
            (differs(or(own.batch, &[1]) == self.batch, self.batch.len()), format!("batch {}", shape.batch)),
            (
                differs(or(own.use_cache, &[true]) == self.use_cache, self.use_cache.len()),
                format!("cache {cache}"),
            ),
            (differs(own.padding == self.padding, self.padding.len()), padding.to_string()),
        ];
        words.into_iter().filter(|(is_named, _)| *is_named).map(|(_, word)| word).collect()
    }
}

impl Point {
    /// The tokens of the prompt that is sent.
    pub fn all_prompt_tokens(&self) -> u32 {
        self.shape.depth.saturating_add(self.prompt_tokens)
    }
}

impl AxisValues {
    /// The same lists with each value once.
    pub fn distinct(&self) -> Self {
        fn distinct<T: PartialEq + Copy>(values: &[T]) -> Vec<T> {
            let is_first = |(index, value): &(usize, &T)| !values[..*index].contains(value);
            values.iter().enumerate().filter(is_first).map(|(_, value)| *value).collect()
        }
        Self {
            prompt_tokens: distinct(&self.prompt_tokens),
            new_tokens: distinct(&self.new_tokens),
            depth: distinct(&self.depth),
            batch: distinct(&self.batch),
            use_cache: distinct(&self.use_cache),
            padding: distinct(&self.padding),
        }
    }

    /// The values of these points, each once.
    pub fn of_points(points: &[Point]) -> Self {
        let values = Self {
            prompt_tokens: points.iter().map(|it| it.prompt_tokens).collect(),
            new_tokens: points.iter().map(|it| it.new_tokens).collect(),
            depth: points.iter().map(|it| it.shape.depth).collect(),
            batch: points.iter().map(|it| it.shape.batch).collect(),
            use_cache: points.iter().map(|it| it.shape.use_cache).collect(),
            padding: points.iter().filter_map(|it| it.shape.padding).collect(),
        };
        values.distinct()
    }

    #[cfg(test)]
    pub fn with_new_tokens(new_tokens: u32) -> Self {
        Self { new_tokens: vec![new_tokens], ..Self::default() }
    }

    pub fn axes(&self) -> Axes<'_> {
        Axes {
            prompt_tokens: &self.prompt_tokens,
            new_tokens: &self.new_tokens,
            depth: &self.depth,
            batch: &self.batch,
            use_cache: &self.use_cache,
            padding: &self.padding,
        }
    }
}

fn or<'a, T>(values: &'a [T], default: &'a [T]) -> &'a [T] {
    if values.is_empty() { default } else { values }
}

/// The name on the command line and in the protocol.
pub fn padding_name(padding: Padding) -> &'static str {
    match padding {
        Padding::Left => "left",
        Padding::Right => "right",
        Padding::Packed => "packed",
    }
}

impl Shape {
    /// Whether a request has one sequence, with a cache of keys and values.
    pub fn is_one_cached_sequence(&self) -> bool {
        Self { depth: 0, ..*self } == Self::default()
    }

    /// The lengths of the prompts of a request, if the longest has `longest` tokens. Uneven prompts shrink from the longest to
    /// a quarter of it, so that a batch has much padding.
    pub fn prompt_lengths(&self, longest: u32) -> Vec<u32> {
        let length = |index: u32| match self.padding {
            Some(_) => (longest / 4 * (4 - index % 4) + longest % 4 * (4 - index % 4) / 4).max(1),
            None => longest,
        };
        (0..self.batch.max(1)).map(length).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_points_are_the_cross_product_and_a_label_names_only_what_varies() {
        let axes = Axes {
            batch: &[4],
            use_cache: &[true, false],
            padding: &[Padding::Left, Padding::Packed],
            ..Axes::of(&[32], &[8, 16])
        };
        let labels: Vec<String> = axes
            .points()
            .iter()
            .map(|it| axes.words_of(it, &Axes { batch: &[4], ..Axes::default() }).join(" "))
            .collect();
        assert_eq!(labels.len(), 8);
        assert_eq!(
            (labels[0].as_str(), labels[7].as_str()),
            ("new 8 cache on left", "new 16 cache off packed")
        );
        assert!(axes.points().iter().all(|it| it.shape.batch == 4 && it.prompt_tokens == 32));
    }

    #[test]
    fn values_of_the_user_replace_those_of_the_scenario() {
        let set = AxisValues { prompt_tokens: vec![7], batch: vec![1, 2], ..AxisValues::default() };
        let axes = Axes::of(&[16, 128], &[1]).with(set.axes());
        let points: Vec<_> = axes.points().iter().map(|it| (it.prompt_tokens, it.shape.batch)).collect();
        assert_eq!(points, [(7, 1), (7, 2)]);
    }

    #[test]
    fn uneven_prompts_shrink_to_a_quarter_of_the_longest() {
        let lengths = |padding| Shape { batch: 5, padding, ..Shape::default() }.prompt_lengths(64);
        assert_eq!(lengths(Some(Padding::Left)), [64, 48, 32, 16, 64]);
        assert_eq!(lengths(None), [64; 5]);
    }

    #[test]
    fn a_default_shape_is_not_stored() {
        assert_eq!(serde_json::to_string(&Shape::default()).unwrap(), "{}");
        let shape = Shape { depth: 0, batch: 2, use_cache: false, padding: Some(Padding::Right) };
        let stored = serde_json::to_string(&shape).unwrap();
        assert_eq!(stored, r#"{"batch":2,"use_cache":false,"padding":"right"}"#);
        assert_eq!(serde_json::from_str::<Shape>(&stored).unwrap(), shape);
        assert_eq!(serde_json::from_str::<Shape>("{}").unwrap(), Shape::default());
    }
}
