//! Entry point of `bailiff-kubernetes`, the process that alone has a token for the API server: answers the enforcer's requests
//! about pods on a Unix socket.
#![expect(clippy::disallowed_methods, reason = "it reads the files of its service account")]

mod api;
mod flags;
mod json;
mod owner;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use bailiff_lifecycle::capabilities;
use bailiff_lifecycle::control::{self, Answers, Limits, Peer, refusal};
use bailiff_lifecycle::exit::{self, Stop, parse};
use bailiff_lifecycle::socket::Socket;
use bailiff_lifecycle::{logs, signals};
use bailiff_snapshot::pod_api::PodRequest;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use serde_json::Value;

use crate::api::Api;
use crate::flags::Flags;

const PROGRAM: &str = env!("CARGO_PKG_NAME");

/// Time limit for handling a request, in which the token can be read twice.
const ANSWER: Duration = Duration::from_secs(24);

fn main() -> ExitCode {
    exit::report_outcome(PROGRAM, start()).into()
}

fn start() -> Result<(), Stop> {
    let flags: Flags = parse(std::env::args_os())?;
    let api = Api::new(flags.settings()?);
    api.check().map_err(Stop::Usage)?;
    logs::start(flags.logs);
    exit::end_on_panic();
    capabilities::drop_all().context("cannot drop capabilities")?;
    // Other processes of the same user can then not read the token in its memory or below its root.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).context("cannot prevent dumps")?;
    let socket = Socket::open(&flags.socket, "socket")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot start the runtime")?;
    let limits = Limits { answer: ANSWER, ..Limits::default() };
    let served = runtime.block_on(signals::until_signal(|shutdown| async move {
        tokio::select! {
            () = control::serve(socket, Arc::new(Requests(Arc::new(api))), limits) => {}
            () = shutdown => {}
        }
    }));
    runtime.shutdown_background();
    served.context("cannot listen to signals")?;
    Ok(())
}

/// Answers requests of root.
struct Requests(Arc<Api>);

impl Answers for Requests {
    async fn answer(&self, peer: &Peer, question: Value) -> Value {
        if peer.uid != 0 {
            return refusal("only root may ask");
        }
        let request: PodRequest = match serde_json::from_value(question) {
            Ok(request) => request,
            Err(error) => return refusal(&format!("not a request: {error}")),
        };
        let api = Arc::clone(&self.0);
        let answer = tokio::task::spawn_blocking(move || api.query(&request)).await;
        let answer = answer.map_err(anyhow::Error::from).and_then(|it| Ok(serde_json::to_value(it)?));
        answer.unwrap_or_else(|error| refusal(&error.to_string()))
    }

    fn needs_groups(&self) -> bool {
        false
    }
}
