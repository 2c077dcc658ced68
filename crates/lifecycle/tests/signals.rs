//! Tests signals that this process sends to itself.

use bailiff_lifecycle::signals::Hangups;
use rustix::process::{Signal, getpid, kill_process};

#[tokio::test]
async fn a_hangup_asks_and_does_not_end() {
    let mut hangups = Hangups::listen().expect("signals can be listened to");
    for _ in 0..2 {
        kill_process(getpid(), Signal::HUP).expect("the process can signal itself");
        hangups.next().await;
    }
}
