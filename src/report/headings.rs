//! The headings of columns, each with its meaning. No column has another title, except one of METRICS or RESOURCE_FACTS, or a part
//! of the wall time. `orchestrate explain` knows them all.

use crate::analysis::metric::Metric;

/// The title of a column, with its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heading {
    /// A line break divides a title into two lines.
    pub title: &'static str,
    pub about: &'static str,
}

impl From<&'static Metric> for Heading {
    fn from(metric: &'static Metric) -> Self {
        Self { title: metric.title, about: metric.about }
    }
}

/// Defines each heading, and the list of all.
macro_rules! headings {
    ($($name:ident = $title:literal, $about:literal;)+) => {
        $(pub const $name: Heading = Heading { title: $title, about: $about };)+

        pub const ALL: &[Heading] = &[$($name),+];
    };
}

headings! {
    ENGINE = "engine", "its name, its preset after a colon, and the options that vary between rows.";
    CASE = "case", "the workload of the row: its scenario with the values of the axes that vary. `ttft 512` has 512 prompt tokens.";
    MODEL = "model", "the model that the row ran.";
    VERSION = "version", "the version that the engine reports. It is in the full report and on wide terminals.";
    DEVICE = "device", "the processor or the GPU that the engine ran on.";
    DTYPE = "dtype", "the format of the weights, as the engine reports it; a/b: weights in a, computed in b.";
    THREADS = "threads", "the number of threads that the engine computed with, as it reports it.";
    OUTPUT = "output", "the result of the output check. A number is the difference from the verifier's log-probabilities of \
        held-out text, in nats (root mean square).";
    SAMPLES = "n", "the number of measured requests of the row, or of the values in a table of distributions and costs.";
    P50 = "p50", "half of the values are at most this (the median). \
        ITL has a value for each token of all requests.";
    P95 = "p95", "95 % of the values are at most this.";
    P99 = "p99", "99 % of the values are at most this.";
    MEAN = "mean", "the mean of the values.";
    STD = "std", "the standard deviation of the values.";
    MIN = "min", "the smallest value.";
    MAX = "max", "the largest value.";
    VS_REFERENCE = "vs ref", "the speed-up over the reference; above 1 is better for every metric. In a table of costs: the quotient \
        of both costs.";
    INTERVAL = "interval", "the 95 % interval of the ratio in the column before it.";
    OUTCOME = "outcome", "the reason why a row has no values.";
    BEST = "best", "the metric of this line, which has the engine with the best value; after @: the value of the axis that varies.";
    RESULT = "result", "the value of the best engine, or of the case that a target is about.";
    AGAINST_NEXT_BEST = "against the next best", "the comparison of the best engine with the second one, with its interval.";
    REQUEST = "request", "the time of a whole request, from just before it was sent to the end of its answer; in `serve`, since its \
        arrival.";
    QUEUE_OVER_TIME = "queue over\ntime", "the mean number of requests that wait for their first token, in each quarter of a round. If \
        it grows from quarter to quarter, the engine does not keep up with the arrivals.";
    PER_SEQUENCE = "a\nsequence", "the time of a request, divided by the number of its sequences.";
    PER_TOKEN = "a\ntoken", "the time of a request, divided by the number of its new tokens.";
    OF_LINEAR_SCALING = "of linear\nscaling", "100 % if twice the sequences give twice the tokens per second.";
    AGAINST = "against", "the setting of the case that this case is compared with.";
    SPEED_UP = "speed-up", "against the case of the same engine that differs only in this setting, with the 95 % interval over blocks.";
    COST_OF_TOKENS = "cost of\n1 M tokens", "the cost of a million generated tokens, in the unit of the price.";
    SAVED = "saved\nvs ref", "the cost that a million tokens save against the reference.";
    DECODE_SPEED = "decode\nspeed", "the decode rate against the widest precision of the same engine.";
    MEMORY_USED = "memory\nused", "the peak memory against the widest precision of the same engine; on a GPU, that of the device.";
    CHANGE = "change", "the change against the other side of the comparison. In the table of precisions: of the \
        perplexity against the widest precision.";
    DRIFT_FROM_WIDEST = "drift from\nwidest", "the difference from the log-probabilities of the engine's widest precision, in nats \
        (root mean square).";
    METRIC = "metric", "the measured quantity; `orchestrate metrics` explains each one.";
    BASE_AND_NEW = "base → new", "the value in the base, then the value in the new record.";
    COST = "cost", "a part of this program's own work.";
    MEDIAN = "median", "half of the values are at most this.";
    PAIRED = "paired", "the noise floor between two rows of one run: an engine against its twin.";
    BETWEEN = "between", "the noise floor between two runs.";
    BLOCKS = "blocks", "the number of blocks that the value was computed from.";
    TARGET = "target", "the metric that a target of the run file is about.";
    WANTED = "wanted", "the bounds of the target.";
    MET = "", "whether the target is met.";
    MEMORY_LIMIT = "memory, GB/s", "the highest rate at which the threads of a line read memory.";
    STREAMS = "streams", "the number of ranges of memory that a thread reads at once.";
    ARITHMETIC_LIMIT = "arithmetic, 10⁹ operations/s", "the highest rate of operations of a unit of the processor.";
    REMAINDER = "rest", "time that neither the engine nor the orchestrator assigns to a part.";
}
