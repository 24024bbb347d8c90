//! METRICS: named functions from the observation of one request to numbers with a unit. To add a metric, add an entry: every
//! report and `orchestrate metrics` use this table.
//!
//! Engines report facts; rates are computed here. A value that does not follow from the facts is absent (an empty vector, `n/a`
//! in a table): never zero, never infinite.

mod gpus;
pub mod growth;
pub mod limits;
mod observation;
mod prediction;
mod resources;
pub mod serving;
pub mod share;
mod single_request;
mod unit;

use std::collections::BTreeSet;

pub use crate::plan::MetricId;
use crate::plan::arrivals::Rate;
use crate::plan::scenario::Kind;
use crate::plan::{Mode, Plan, Workload};
use crate::record::RunRecord;
use crate::text::{line, shorten};
pub use stats::Better;
use stats::MetricKind;

pub use gpus::OnGpus;
pub use observation::{Observation, RecordContext};
pub use prediction::{change_of_perplexity, drift_from};
pub use resources::{
    CoresBusy, MemorySource, device_memory_with_source, gpu_joules_per_token, idle_watts,
    reported_device_bytes, weights_bytes,
};
pub use serving::share_within_limits;
pub use unit::{Scale, Unit};

pub const METRICS: &[Metric] = &[
    Metric {
        id: MetricId::LOAD,
        title: "load",
        unit: Unit::Nanoseconds,
        better: Better::Lower,
        wording: Wording::Speed("loads"),
        per: Per::Launch,
        shown: Shown::Estimate,
        about: "time from the start of the process to its `loaded` answer, imports included, on the orchestrator's clock. \
                One number for each launch.",
        of: |observed| observed.launch.loaded_ns.map(|ns| ns as f64).into_iter().collect(),
    },
    Metric {
        id: MetricId::new("load_rate"),
        title: "load rate",
        unit: Unit::BytesPerSecond,
        better: Better::Higher,
        wording: Wording::Speed("reads its files"),
        per: Per::Sample,
        shown: Shown::Beside(MetricId::COLD_START),
        about: "bytes of the model's files per second of the cold start, so the start of the process counts. Engines that map \
                files read them with the first request, so a rate of the load phases would be too high. Only in the scenario \
                `load`.",
        of: |observed| single_request::load_rate(observed).into_iter().collect(),
    },
    Metric {
        id: MetricId::COLD_START,
        title: "cold start",
        unit: Unit::Nanoseconds,
        better: Better::Lower,
        wording: Wording::Speed("starts cold"),
        per: Per::Sample,
        shown: Shown::Estimate,
        about: "time from the start of the process to the first token of its first request. It is the time until the \
                answer, on the orchestrator's clock, minus the time from that token to the end, on the engine's clock.",
        of: single_request::cold_start,
    },
    Metric {
        id: MetricId::TOTAL,
        title: "total",
        unit: Unit::Nanoseconds,
        better: Better::Lower,
        wording: Wording::Speed("answers"),
        per: Per::Sample,
        shown: Shown::AsHeadline,
        about: "time from the request to the whole answer, on the orchestrator's clock. In one-shot mode it starts with the \
                process.",
        // The total of a query is the metric `query`.
        of: |observed| match observed.kind {
            Kind::Serve => serving::totals(observed),
            kind if kind.generates() => single_request::total_of(observed.sample, observed.mode),
            _ => Vec::new(),
        },
    },
    Metric {
        id: MetricId::LATENCY_GROWTH,
        title: "latency growth",
        unit: Unit::SharePerMinute,
        better: Better::Lower,
        wording: Wording::Amount("growth of the latency"),
        per: Per::Launch,
        shown: Shown::Beside(MetricId::TOTAL),
        about: "growth of `total` per minute of requests. Only the second half of the time in use counts. It has twelve parts, each with \
                the median of `total`. The value is the median slope between these medians. Only in the scenario `stress`.",
        of: |observed| observed.growth.and_then(|it| Some(it.latency?.estimate)).into_iter().collect(),
    },
    Metric {
        id: MetricId::MEMORY_GROWTH,
        title: "memory growth",
        unit: Unit::BytesPerMinute,
        better: Better::Lower,
        wording: Wording::Amount("growth of the memory"),
        per: Per::Launch,
        shown: Shown::Beside(MetricId::TOTAL),
        about: "growth of the anonymous memory per minute of requests, measured after answers. Only the second half of the time in use \
                counts. It has twelve parts, each with its least value. The value is the median slope between these values. Only in \
                the scenario `stress`.",
        of: |observed| observed.growth.and_then(|it| Some(it.memory?.estimate)).into_iter().collect(),
    },
    Metric {
        id: MetricId::FIRST_RUN,
        title: "first run",
        unit: Unit::Nanoseconds,
        better: Better::Lower,
        wording: Wording::Speed("answers first"),
        per: Per::Launch,
        shown: Shown::AsHeadline,
        about: "time from a launch's first request of a case to its whole answer, on the orchestrator's clock. The request \
                may be a warm-up. In one-shot mode the time starts with the process. It includes cold caches, compiling of \
                kernels and allocation of memory. In the scenario `cold-start` it is the first request of the launch. One \
                value for each launch.",
        of: |observed| {
            let first = observed.first.filter(|_| observed.kind.generates());
            first.map_or_else(Vec::new, |first| single_request::total_of(first, observed.mode))
        },
    },
    Metric {
        id: MetricId::new("warm_run"),
        title: "warm run",
        unit: Unit::Nanoseconds,
        better: Better::Lower,
        wording: Wording::Speed("answers when it is warm"),
        per: Per::Sample,
        shown: Shown::Beside(MetricId::FIRST_RUN),
        about: "time from a request to its whole answer when the engine is warm, on the orchestrator's clock. Only in the \
                scenario `cold-start`, beside the first run.",
        of: |observed| single_request::warm_run(observed).into_iter().collect(),
    },
    Metric {
        id: MetricId::new("warm_up_gain"),
        title: "warm-up gain",
        unit: Unit::Share,
        better: Better::Lower,
        wording: Wording::Amount("time that a warm-up saves"),
        per: Per::Sample,
        shown: Shown::Beside(MetricId::FIRST_RUN),
        about: "the share of the first run's time that a warm engine saves: 1 - warm run / first run. Only in the scenario \
                `cold-start`.",
        of: single_request::warm_up_gain,
    },
    Metric {
        id: MetricId::FIRST_TOKEN,
        title: "TTFT",
        unit: Unit::Nanoseconds,
        better: Better::Lower,
        wording: Wording::Speed("reaches its first token"),
        per: Per::Sample,
        shown: Shown::Estimate,
        about: "time to first token (TTFT), from just before tokenisation until the host can use the token: token_ns[0] - \
                start_ns. One number for each sequence of a batch. For an engine that returns text: until its first chunk. \
                Of overlapping requests (`serve`): since the arrival of the request.",
        of: single_request::first_token,
    },
    Metric {
        id: MetricId::INTER_TOKEN,
        title: "ITL",
        unit: Unit::Nanoseconds,
        better: Better::Lower,
        wording: Wording::Speed("gives each next token"),
        per: Per::Sample,
        shown: Shown::Percentiles,
        about: "inter-token latency (ITL), the time between successive tokens of a sequence: token_ns[k] - token_ns[k - 1]. \
                Only for engines that stamp each token: a chunk is not a token. Absent if the request asks for drafts, because one \
                step then gives several tokens.",
        of: single_request::inter_token,
    },
    Metric {
        id: MetricId::PREFILL_RATE,
        title: "prefill",
        unit: Unit::TokensPerSecond,
        better: Better::Higher,
        wording: Wording::Speed("prefills"),
        per: Per::Sample,
        shown: Shown::Estimate,
        about: "prompt tokens per second until the first token: prompt_tokens / (token_ns[0] - start_ns). Tokens that the \
                engine reports as cached do not count. In a batch: all prompts, until the last sequence has its first token. \
                Absent in the scenario `load`, whose requests are cold.",
        of: single_request::prefill_rate,
    },
    Metric {
        id: MetricId::DECODE_RATE,
        title: "decode",
        unit: Unit::TokensPerSecond,
        better: Better::Higher,
        wording: Wording::Speed("decodes"),
        per: Per::Sample,
        shown: Shown::Estimate,
        about: "generated tokens per second after the first token, without the prefill: (n - 1) / (t_last - t_first). Tokens \
                that arrive with the first do not count. In a batch: the tokens of all sequences, from the earliest first \
                token to the latest last token.",
        of: |observed| {
            if single_request::has_effective_rate(observed) {
                Vec::new()
            } else {
                single_request::decode_rate(observed)
            }
        },
    },
    Metric {
        id: MetricId::EFFECTIVE_RATE,
        title: "effective",
        unit: Unit::TokensPerSecond,
        better: Better::Higher,
        wording: Wording::Speed("generates with drafts"),
        per: Per::Sample,
        shown: Shown::AsHeadline,
        about: "generated tokens per second after the first token, in requests that may draft tokens: (n - 1) / (t_last - \
                t_first). Accepted drafts count as tokens, rejected ones do not. Only in the scenario `speculative`, also in its \
                requests without drafts.",
        of: |observed| {
            if single_request::has_effective_rate(observed) {
                single_request::decode_rate(observed)
            } else {
                Vec::new()
            }
        },
    },
    Metric {
        id: MetricId::new("acceptance"),
        title: "accepted",
        unit: Unit::Share,
        better: Better::Higher,
        wording: Wording::Amount("accepted drafts"),
        per: Per::Sample,
        shown: Shown::Beside(MetricId::EFFECTIVE_RATE),
        about: "accepted drafts: the share of the drafted tokens that the model confirmed, as the engine counts them \
                (accepted_tokens / drafted_tokens). Absent if the request asks for no drafts, or if nothing was drafted.",
        of: |observed| single_request::acceptance(observed).into_iter().collect(),
    },
    Metric {
        id: MetricId::BANDWIDTH_SHARE,
        title: "of limit",
        unit: Unit::Share,
        better: Better::Higher,
        wording: Wording::Speed("reads what a decode needs"),
        per: Per::Sample,
        shown: Shown::OfLimit(MetricId::DECODE_RATE),
        about: "bytes that a decode must read per second, as a share of the best read rate of this run's probes with as many \
                threads. The bytes: the weights, and the cached keys and values, in each step after the first. The time: from \
                the first token to the last. Weights count in the reported dtype, and once for a whole batch. \
                Probes run before each block and after the last one. On an NVIDIA GPU the limit is the rate of copies within \
                its memory, probed once. Absent for weights under four times the last-level cache. A share above 100 % \
                means: the machine was slower during the probes, the engine used more threads than requested, or a reported \
                fact is wrong.",
        of: share::bandwidth,
    },
    Metric {
        id: MetricId::COMPUTE_SHARE,
        title: "of limit",
        unit: Unit::Share,
        better: Better::Higher,
        wording: Wording::Speed("computes what a prefill needs"),
        per: Per::Sample,
        shown: Shown::OfLimit(MetricId::PREFILL_RATE),
        about: "operations that a prefill must do per second, as a share of the best rate of this run's probes with as many \
                threads. The operations: two for each weight and prompt token (for the weights of the output: one token), \
                and two for each attended key and value. The time: from the request to the first token. The limit is the \
                fastest unit for the compute dtype. For f32: f32 units. For bf16 and f16: f32 and bf16 units. For quantized \
                weights: any unit. Rates of matrix tiles include the reading of their operands. On an NVIDIA GPU the limit \
                is cuBLAS in the compute dtype, probed once. Absent in the scenario `load`.",
        of: share::compute,
    },
    Metric {
        id: MetricId::BANDWIDTH_DATA_SHEET_SHARE,
        title: "of data sheet",
        unit: Unit::Share,
        better: Better::Higher,
        wording: Wording::Speed("reads what a decode needs"),
        per: Per::Sample,
        shown: Shown::OfDataSheet(MetricId::DECODE_RATE),
        about: "like `of limit` in decode, but of the memory bandwidth that the data sheet of the GPU states. Absent on a GPU without a \
                data sheet in this program, on a MIG device, and on a CPU, whose data sheet states no peak.",
        of: |observed| share::bandwidth_of_data_sheet(observed).into_iter().collect(),
    },
    Metric {
        id: MetricId::COMPUTE_DATA_SHEET_SHARE,
        title: "of data sheet",
        unit: Unit::Share,
        better: Better::Higher,
        wording: Wording::Speed("computes what a prefill needs"),
        per: Per::Sample,
        shown: Shown::OfDataSheet(MetricId::PREFILL_RATE),
        about: "like `of limit` in prefill, but of the peak that the data sheet of the GPU states for the compute dtype, without sparsity. \
                This peak needs the highest clock, which few GPUs hold in a long product. Absent on a GPU without a data sheet in \
                this program, on a MIG device, and on a CPU, whose data sheet states no peak.",
        of: |observed| share::compute_of_data_sheet(observed).into_iter().collect(),
    },
    Metric {
        id: MetricId::THROUGHPUT,
        title: "throughput",
        unit: Unit::TokensPerSecond,
        better: Better::Higher,
        wording: Wording::Speed("generates"),
        per: Per::Sample,
        shown: Shown::AsHeadline,
        about: "new tokens per second over the whole request, prefill included: tokens / (end_ns - start_ns). All sequences \
                of a batch count together. In the scenario `offline`: all new tokens, divided by the time until the last answer.",
        of: single_request::throughput,
    },
    Metric {
        id: MetricId::SERVED_RATE,
        title: "served",
        unit: Unit::TokensPerSecond,
        better: Better::Higher,
        wording: Wording::Speed("serves"),
        per: Per::Sample,
        shown: Shown::AsHeadline,
        about: "new tokens per second of all users, in the steady part of a round. With a number of users: from the first answer until the \
                last request arrives. With a rate or a trace: without an eighth of the requests at the start and at the end. If all \
                requests arrive at once: until the last answer. Only in the scenarios `serve` and `offline`.",
        of: |observed| serving::served_rate(observed).into_iter().collect(),
    },
    Metric {
        id: MetricId::new("request_rate"),
        // `requests` is the number of requests, and `--request-rate` the rate at which they arrive.
        title: "answers",
        unit: Unit::RequestsPerSecond,
        better: Better::Higher,
        wording: Wording::Speed("answers"),
        per: Per::Sample,
        shown: Shown::Beside(MetricId::SERVED_RATE),
        about: "answers per second in the same part of the round as `served`.",
        of: |observed| serving::request_rate(observed).into_iter().collect(),
    },
    Metric {
        id: MetricId::new("cached_prompt"),
        title: "cached prompt",
        unit: Unit::Share,
        better: Better::Higher,
        wording: Wording::Amount("cached prompt tokens"),
        per: Per::Sample,
        shown: Shown::Beside(MetricId::SERVED_RATE),
        about: "the share of the prompt tokens that the engine took from its prefix cache, as it counts them, in the requests whose \
                latency counts (cached_prompt_tokens / prompt_tokens). Absent if prefix caches are not allowed, or if the engine \
                reports no such count.",
        of: |observed| serving::cached_share(observed).into_iter().collect(),
    },
    Metric {
        id: MetricId::HIGHEST_RATE,
        title: "highest rate",
        unit: Unit::RequestsPerSecond,
        better: Better::Higher,
        wording: Wording::Speed("serves within the latency limits"),
        per: Per::Sample,
        shown: Shown::AsHeadline,
        about: "the highest rate of requests at which nine of ten keep the limits of `--slo`. Each round searches it; the value is the \
                middle between the highest rate that kept them and the lowest that did not. Only with `--request-rate highest`.",
        of: |observed| serving::highest_rate(observed).into_iter().collect(),
    },
    Metric {
        id: MetricId::new("goodput"),
        title: "goodput",
        unit: Unit::RequestsPerSecond,
        better: Better::Higher,
        wording: Wording::Speed("answers within the latency limits"),
        per: Per::Sample,
        shown: Shown::AsHeadline,
        about: "answers per second that keep all limits of `--slo`: the rate of answers times the share that keeps them.",
        of: |observed| serving::goodput(observed).into_iter().collect(),
    },
    Metric {
        id: MetricId::new("within_limits"),
        title: "within SLO",
        unit: Unit::Share,
        better: Better::Higher,
        wording: Wording::Amount("share of requests within the latency limits"),
        per: Per::Sample,
        shown: Shown::Beside(MetricId::SERVED_RATE),
        about: "the share of the requests that keep all limits of `--slo`. `itl` limits each time between two tokens of a request, `tpot` \
                their mean.",
        of: |observed| serving::share_within_limits(observed).into_iter().collect(),
    },
    Metric {
        id: MetricId::new("queue"),
        title: "queue",
        unit: Unit::Requests,
        better: Better::Lower,
        wording: Wording::Amount("number of waiting requests"),
        per: Per::Sample,
        shown: Shown::Beside(MetricId::SERVED_RATE),
        about: "the mean number of requests that wait for their first token, in the same part of the round as `served`. The prompt of \
                some of them is computed in this time.",
        of: |observed| serving::queue(observed).into_iter().collect(),
    },
    Metric {
        id: MetricId::FIRST_TOKEN_SINCE_SENT,
        title: "TTFT since sent",
        unit: Unit::Nanoseconds,
        better: Better::Lower,
        wording: Wording::Speed("gives the first token of a request that it has"),
        per: Per::Sample,
        shown: Shown::AsHeadline,
        about: "time to first token since the engine got the request, without the wait for a busy engine. Only in the scenarios `serve` \
                and `offline`; a table has it if requests waited longer than 1 ms on average.",
        of: serving::first_tokens_since_sent,
    },
    Metric {
        id: MetricId::TIME_PER_TOKEN,
        title: "TPOT",
        unit: Unit::Nanoseconds,
        better: Better::Lower,
        wording: Wording::Speed("gives the next tokens"),
        per: Per::Sample,
        shown: Shown::AsHeadline,
        about: "time per output token: of each request, the mean time of the tokens after the first one. Only in the scenarios `serve` \
                and `offline`.",
        of: serving::times_per_token,
    },
    Metric {
        id: MetricId::QUERY,
        title: "query",
        unit: Unit::Nanoseconds,
        better: Better::Lower,
        wording: Wording::Speed("answers a query"),
        per: Per::Sample,
        shown: Shown::AsHeadline,
        about: "time from a request for the engine's facts to the arrival of the whole answer, on the orchestrator's clock. The \
                engine reports no time. Only in the scenario `queries`.",
        of: |observed| single_request::query(observed).into_iter().collect(),
    },
    Metric {
        id: MetricId::new("null_query"),
        title: "null engine",
        unit: Unit::Nanoseconds,
        better: Better::Lower,
        wording: Wording::Speed("carries a query"),
        per: Per::Launch,
        shown: Shown::Beside(MetricId::QUERY),
        about: "time of the same query to an engine that computes nothing, measured in turn with the engines of the run: the \
                median within the same block. It is roughly the part of `query` that the pipe and this program take.",
        of: |observed| observed.null_query_ns.filter(|_| observed.kind == Kind::Query).into_iter().collect(),
    },
    Metric {
        id: MetricId::PERPLEXITY,
        title: "perplexity",
        unit: Unit::Perplexity,
        better: Better::Lower,
        wording: Wording::Amount("perplexity"),
        per: Per::Sample,
        shown: Shown::Estimate,
        about: "exponential of the mean loss of a token: exp(sum of -log p / tokens), over all scored tokens of the text, in the \
                engine's own precision. Only in the scenario `perplexity`, which scores windows of the same text once. Absent if \
                the engine finds a token impossible, or if it is too large for a number.",
        of: prediction::perplexity,
    },
    Metric {
        id: MetricId::LOSS,
        title: "loss",
        unit: Unit::Nats,
        better: Better::Lower,
        wording: Wording::Amount("loss"),
        per: Per::Sample,
        shown: Shown::Estimate,
        about: "mean loss of a token of the scored text: sum of -log p / tokens, with natural logarithms. Only in the scenario \
                `perplexity`.",
        of: prediction::mean_loss,
    },
    Metric {
        id: MetricId::BITS_PER_BYTE,
        title: "bits/byte",
        unit: Unit::Bits,
        better: Better::Lower,
        wording: Wording::Amount("bits for each byte"),
        per: Per::Sample,
        shown: Shown::Estimate,
        about: "bits of the scored tokens, divided by the bytes of their text: sum of -log2 p / bytes. It compares models with \
                different tokenizers. Only in the scenario `perplexity`.",
        of: prediction::bits_per_byte,
    },
    Metric {
        id: MetricId::PERPLEXITY_CHANGE,
        title: "vs f32",
        unit: Unit::Share,
        better: Better::Lower,
        wording: Wording::Amount("change of the perplexity"),
        per: Per::Sample,
        shown: Shown::AsHeadline,
        about: "change of the perplexity against the verifier's in f32, on the same windows, as a share. Absent without a \
                verifier in f32.",
        of: prediction::perplexity_change,
    },
    Metric {
        id: MetricId::DRIFT,
        title: "drift",
        unit: Unit::Nats,
        better: Better::Lower,
        wording: Wording::Amount("drift"),
        per: Per::Sample,
        shown: Shown::Estimate,
        about: "root mean square, over the scored tokens, of the difference between the engine's log-probability and that of the \
                verifier in f32. Only in the scenario `perplexity`, and absent without a verifier in f32.",
        of: prediction::drift,
    },
    Metric {
        id: MetricId::PEAK_MEMORY,
        title: "peak mem",
        unit: Unit::Bytes,
        better: Better::Lower,
        wording: Wording::Amount("memory"),
        per: Per::Launch,
        shown: Shown::Estimate,
        about: "the highest resident memory of the engine's processes since their start, up to the end of this case, so with the load \
                and earlier cases. It counts their own memory, and the pages of mapped files (libraries, weights) that were read. It \
                does not count memory on a GPU, swapped pages, or files in the page cache that are not mapped. Of several processes, \
                the peaks are added (VmHWM), and shared pages count once.",
        of: resources::peak_memory,
    },
    Metric {
        id: MetricId::MEMORY_ANONYMOUS,
        title: "anonymous memory",
        unit: Unit::Bytes,
        better: Better::Lower,
        wording: Wording::Amount("anonymous memory"),
        per: Per::Launch,
        shown: Shown::AsHeadline,
        about: "memory of the process tree that no file backs, shared memory included: the kernel cannot drop it. The \
                largest value during the sampled pass or after an answer; samplers do not run during `load`. Each page \
                counts once (Pss_Anon and Pss_Shmem of smaps_rollup).",
        of: resources::memory_anonymous,
    },
    Metric {
        id: MetricId::MEMORY_FILE,
        title: "file-backed memory",
        unit: Unit::Bytes,
        better: Better::Lower,
        wording: Wording::Amount("file-backed memory"),
        per: Per::Launch,
        shown: Shown::AsHeadline,
        about: "memory of the process tree that a file backs: libraries and mapped weights. Sampled together with anonymous \
                memory. Each page counts once, and in full if another engine maps the same file. It is the sum of Pss_File \
                of smaps_rollup, but at least the largest RssFile.",
        of: resources::memory_file,
    },
    Metric {
        id: MetricId::MEMORY_OVERHEAD,
        title: "memory over weights",
        unit: Unit::Bytes,
        better: Better::Lower,
        wording: Wording::Amount("memory over the weights"),
        per: Per::Launch,
        shown: Shown::AsHeadline,
        about: "peak memory minus the bytes of weights that the engine reports: its program, its cache and its copies. For an \
                engine on a GPU: peak memory of the device.",
        of: resources::memory_overhead,
    },
    Metric {
        id: MetricId::DEVICE_MEMORY,
        title: "device memory",
        unit: Unit::Bytes,
        better: Better::Lower,
        wording: Wording::Amount("device memory"),
        per: Per::Launch,
        shown: Shown::AsHeadline,
        about: "peak device memory: the larger of the engine's reported peak and the value of the sampled pass. The driver \
                counts the memory of the engine's processes. If the driver names none of them, as in most containers, the \
                growth of the whole device since the launch counts, other programs included. `--resources` names the \
                source. Not for an engine on the CPU.",
        of: resources::device_memory,
    },
    Metric {
        id: MetricId::JOULES_PER_TOKEN,
        title: "energy per token",
        unit: Unit::Joules,
        better: Better::Lower,
        wording: Wording::Amount("energy for each token"),
        per: Per::Launch,
        shown: Shown::AsHeadline,
        about: "energy of the sampled pass above idle, for each new token; the energy of the prompt is included. The \
                counters are those of processor packages and their memory (RAPL), and of the GPUs that the engine uses \
                (NVML). Absent if one cannot be read, for a MIG device, and for a GPU in a sampled pass \
                under one second. Most virtual machines have no processor counters.",
        of: resources::joules_per_token,
    },
];

/// One entry of the table.
#[derive(Debug)]
pub struct Metric {
    pub id: MetricId,
    /// The header of the column.
    pub title: &'static str,
    pub unit: Unit,
    /// The meaning of the metric, with the formula.
    pub about: &'static str,
    pub better: Better,
    pub wording: Wording,
    pub per: Per,
    pub shown: Shown,
    /// The numbers of one observation: none, one or many.
    pub of: fn(&Observation) -> Vec<f64>,
}

/// The verb or noun of a metric in a sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wording {
    /// Work that is done fast or slowly: `decodes`.
    Speed(&'static str),
    /// A resource that is needed: `memory`.
    Amount(&'static str),
}

/// The source of the values that are summarized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Per {
    /// Every number of every sample is a value.
    Sample,
    /// The largest number of a launch is its only value: the samples of a launch repeat one number, or each has
    /// the largest number so far.
    Launch,
}

/// The columns of a metric in the table of the full report. CSV and JSON have all values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    Estimate,
    /// The p50, p95 and p99.
    Percentiles,
    /// The estimate, but only if this is the headline metric.
    AsHeadline,
    /// The column for shares of the machine's limits, if the metric with this id is the headline.
    OfLimit(MetricId),
    /// The column for shares of a data sheet's peaks, if the metric with this id is the headline.
    OfDataSheet(MetricId),
    /// The estimate, but only beside the headline with this id. Engines are not ranked by it.
    Beside(MetricId),
}

impl Metric {
    /// The index in METRICS; `None` for a metric that is not in the table.
    pub fn index(&self) -> Option<usize> {
        METRICS.iter().position(|other| other.id == self.id)
    }

    /// The name in records, in machine-readable reports and on the command line.
    pub fn name(&self) -> &'static str {
        self.id.as_str()
    }

    /// Whether engines are compared by the metric. A share of a limit differs as its rate does, and a value beside a headline
    /// only explains the headline.
    pub fn is_compared(&self) -> bool {
        !matches!(self.shown, Shown::OfLimit(_) | Shown::OfDataSheet(_) | Shown::Beside(_))
    }

    /// The scale of the metric in every table. `None` if each view chooses one for its values. The times of queries are always in
    /// microseconds.
    pub fn fixed_scale(&self) -> Option<Scale> {
        let is_of_query = self.id == MetricId::QUERY || self.shown == Shown::Beside(MetricId::QUERY);
        is_of_query.then_some(Scale { divisor: 1e3, symbol: "µs" })
    }

    /// The scale of the metric in the default report and in the full one. It is the same in every record.
    pub fn scale(&self) -> Scale {
        let of_unit = |unit| match unit {
            Unit::Nanoseconds => Scale { divisor: 1e6, symbol: "ms" },
            Unit::Bytes => Scale { divisor: 1e6, symbol: "MB" },
            unit => Scale::of(unit, [1.0]),
        };
        self.fixed_scale().unwrap_or_else(|| of_unit(self.unit))
    }

    pub fn kind(&self) -> MetricKind {
        match self.wording {
            Wording::Speed(_) => MetricKind::Speed,
            Wording::Amount(_) => MetricKind::Amount,
        }
    }
}

/// The headline metric of a workload: its comparisons decide the ranking and gate a build.
pub fn headline(plan: &Plan, workload: &Workload) -> Option<&'static Metric> {
    // In one-shot mode a request counts from the start of its process.
    match (plan.mode, workload.kind) {
        (Mode::OneShot, Kind::Warm | Kind::Speculative) => Some(by_id(MetricId::TOTAL)),
        (_, Kind::Serve) if workload.shape.request_rate == Some(Rate::Highest) => {
            Some(by_id(MetricId::HIGHEST_RATE))
        }
        _ => find(workload.headline),
    }
}

/// The metric of a constant of `MetricId`.
pub fn by_id(id: MetricId) -> &'static Metric {
    find(id).expect("a test finds every constant of `MetricId` in METRICS")
}

/// The metric with this id; `None` for a metric that only a later version has.
pub fn find(id: MetricId) -> Option<&'static Metric> {
    METRICS.iter().find(|metric| metric.id == id)
}

#[cfg(test)]
pub fn named(name: &str) -> Option<&'static Metric> {
    find(MetricId::named(name))
}

/// The largest number of unknown metrics that a note names.
const MAX_UNKNOWN_NAMES: usize = 4;

/// A note on metrics of a record that this version does not know, so that no report shows them.
pub fn unknown_metrics(record: &RunRecord) -> Option<String> {
    let plan = &record.header.plan;
    let headlines = plan.cases.iter().map(|case| case.workload.headline);
    let floors = record.header.noise_floors.iter().map(|floor| floor.metric);
    let unknown: BTreeSet<MetricId> = headlines.chain(floors).filter(|id| find(*id).is_none()).collect();
    let named = unknown.iter().take(MAX_UNKNOWN_NAMES);
    let mut names: Vec<String> = named.map(|id| format!("`{}`", shorten(&line(id.as_str()), 40))).collect();
    let more = unknown.len().saturating_sub(MAX_UNKNOWN_NAMES);
    names.extend((more > 0).then(|| format!("and {more} more")));
    let names = (!names.is_empty()).then(|| names.join(", "))?;
    Some(format!(
        "the record has metrics that this version of orchestrate does not know ({names}); they are not shown or compared; \
         use a later version"
    ))
}

#[cfg(test)]
mod tests;
