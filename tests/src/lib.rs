//! Code that the end-to-end tests share: the real programs, a made-up `/proc`, a strict parser for pages,
//! and waiting for conditions. All of it may panic, since only tests and the demo use it.
#![expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::must_use_candidate,
    clippy::missing_panics_doc,
    reason = "tests start programs, read files and fail loudly"
)]

pub mod api_server;
pub mod bench;
pub mod browser;
pub mod certificates;
pub mod cgroups;
pub mod cuda;
pub mod daemon;
pub mod enforcer;
pub mod exporter;
pub mod fake;
pub mod holder;
pub mod home;
pub mod hostile_redis;
pub mod http;
pub mod hung;
pub mod idle_timeout;
pub mod kube_apiserver;
pub mod kubelet;
pub mod leases;
pub mod legacy;
pub mod mps;
pub mod node;
pub mod orphan;
pub mod page;
pub mod procfs;
pub mod programs;
pub mod prometheus;
pub mod redis;
pub mod showcase;
pub mod slow_sync;
pub mod slurm;
pub mod tenant;
pub mod terminal;
pub mod ticks;
pub mod tls;
pub mod user;
pub mod wait;
