//! What the check of a file needs from outside.

use std::time::Duration;

bailiff_snapshot::label_values! {
/// Server that a body is for.
pub enum Format {
    /// Any; by default, the body is the notification.
    Json = "json",
    /// Slack, an incoming webhook.
    Slack = "slack",
    /// Mattermost, an incoming webhook.
    Mattermost = "mattermost",
    /// Microsoft Teams, a workflow that posts an Adaptive Card.
    Teams = "teams",
    /// Matrix, a generic webhook of Hookshot.
    Matrix = "matrix",
    /// PagerDuty, the Events API v2.
    PagerDuty = "pagerduty",
    /// Alertmanager, the API v2.
    Alertmanager = "alertmanager",
}
}

/// Context for the check of a file.
#[derive(Debug, Clone, Copy)]
pub struct LoadContext {
    /// Current time since the Unix epoch.
    pub now: Duration,
    /// Returns whether a text is a Redis address.
    pub is_redis_address: fn(&str) -> bool,
    /// Returns whether a text is a mail address, with or without a name.
    pub is_mail_address: fn(&str) -> bool,
    /// Checks a template of a mail; the error is why it is invalid.
    pub check_template: fn(&str) -> Result<(), String>,
    /// Checks a template of a webhook's body; the error is why it is invalid.
    pub check_body: fn(Format, &str) -> Result<(), String>,
}

impl LoadContext {
    /// Returns the context of tests, in which every text is a valid address and template.
    pub const fn accepting(now: Duration) -> Self {
        Self {
            now,
            is_redis_address: |_| true,
            is_mail_address: |_| true,
            check_template: |_| Ok(()),
            check_body: |_, _| Ok(()),
        }
    }
}
