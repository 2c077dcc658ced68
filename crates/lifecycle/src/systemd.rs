//! Notifications to systemd (`sd_notify(3)`). They are not sent if `NOTIFY_SOCKET` is not set.

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

/// Reports that the daemon is alive. Must be called at least once per interval that [`watchdog`] returns.
pub fn alive() {
    notify(NotifyState::Watchdog);
}

/// Returns the interval at which to call [`alive`], which is half of `WatchdogSec=`, or `None` if the
/// unit does not set it.
pub fn watchdog() -> Option<Duration> {
    Some(sd_notify::watchdog_enabled()? / 2)
}

fn notify(what: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[what]) {
        tracing::warn!(%error, "cannot notify systemd");
    }
}
