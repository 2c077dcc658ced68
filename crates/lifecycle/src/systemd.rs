//! Notifications to systemd (`sd_notify(3)`). Without `NOTIFY_SOCKET`, none is sent.

use std::time::Duration;

use sd_notify::NotifyState;

/// Reports that the daemon is ready.
pub fn ready() {
    notify(NotifyState::Ready);
}

/// Reports that the daemon is stopping.
pub fn stopping() {
    notify(NotifyState::Stopping);
}

/// Reports that the daemon is alive. Call it at least as often as [`watchdog`] returns.
pub fn alive() {
    notify(NotifyState::Watchdog);
}

/// Returns the interval at which to call [`alive`], half of `WatchdogSec=`; `None` if the unit has none.
#[must_use]
pub fn watchdog() -> Option<Duration> {
    Some(sd_notify::watchdog_enabled()? / 2)
}

fn notify(what: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[what]) {
        tracing::warn!(%error, "cannot notify systemd");
    }
}
