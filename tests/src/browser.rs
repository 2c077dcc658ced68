//! A headless Chromium, controlled over a pipe with the `DevTools` protocol. It returns the text and the width of a
//! page and violations of accessibility rules, and it can connect only to loopback addresses.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::programs;
use crate::wait::until;

/// Chromium reads from descriptor 3 and writes to descriptor 4.
const ON_PIPES: &str = "exec chromium \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1";

const FLAGS: [&str; 15] = [
    "--headless",
    "--no-sandbox",
    "--remote-debugging-pipe",
    "--disable-gpu",
    "--hide-scrollbars",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-default-apps",
    "--disable-extensions",
    "--no-first-run",
    "--no-proxy-server",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "about:blank",
];

/// The user's preferred colour scheme.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// Dark text on a light background.
    Light,
    /// Light text on a dark background.
    Dark,
}

/// A screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Screen {
    /// Width in CSS pixels.
    pub width: u32,
    /// Height in CSS pixels.
    pub height: u32,
    /// Whether the device is a handheld device.
    pub mobile: bool,
    /// Preferred colour scheme.
    pub scheme: Scheme,
}

impl Screen {
    /// A desktop screen.
    pub const WIDE: Self = Self { width: 1280, height: 900, mobile: false, scheme: Scheme::Light };
    /// The screen of a small phone.
    pub const PHONE: Self = Self { width: 360, height: 740, mobile: true, scheme: Scheme::Light };

    /// Returns the same screen with the dark scheme.
    pub const fn dark(self) -> Self {
        Self { scheme: Scheme::Dark, ..self }
    }
}

/// A browser with one window, closed with its test.
pub struct Browser {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    session: Option<String>,
    sent: u64,
    /// Events that were received but not yet read.
    events: Vec<Value>,
    _profile: TempDir,
}

impl Browser {
    /// Starts a browser.
    ///
    /// # Panics
    /// If `tests/setup chromium` has not been run.
    pub fn start() -> Self {
        let profile = tempfile::tempdir().expect("a temporary directory");
        let mut command = Command::new("sh");
        command.args(["-c", ON_PIPES, "chromium"]);
        command.arg(format!("--user-data-dir={}", profile.path().display())).args(FLAGS);
        // Chromium also stores other files there.
        command.env("HOME", profile.path()).env_remove("XDG_CONFIG_HOME").env_remove("XDG_CACHE_HOME");
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0).spawn().expect("a shell");
        let to = child.stdin.take().expect("stdin is piped");
        let from = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let mut browser =
            Self { child, to, from, session: None, sent: 0, events: Vec::new(), _profile: profile };
        let target = browser.call("Target.createTarget", &json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = browser.call("Target.attachToTarget", &attach);
        browser.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), &json!({}));
        }
        browser
    }

    /// Loads a page on this screen, and waits until it is loaded.
    pub fn visit(&mut self, url: &str, screen: Screen) {
        let Screen { width, height, mobile, scheme } = screen;
        let device = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile});
        self.call("Emulation.setDeviceMetricsOverride", &device);
        let scheme = if scheme == Scheme::Dark { "dark" } else { "light" };
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.call("Emulation.setEmulatedMedia", &media);
        self.events.clear();
        let went = self.call("Page.navigate", &json!({"url": url}));
        assert_eq!(went.get("errorText"), None, "{url}: {went}");
        while !self.events.iter().any(|event| event["method"] == "Page.loadEventFired") {
            let event = self.read();
            self.events.push(event);
        }
    }

    /// Enables or disables scripts in pages.
    pub fn scripts(&mut self, allowed: bool) {
        self.call("Emulation.setScriptExecutionDisabled", &json!({"value": !allowed}));
    }

    /// Evaluates an expression in the current page, even if scripts in pages are disabled.
    ///
    /// # Panics
    /// If the expression throws.
    pub fn query(&mut self, expression: &str) -> Value {
        let query = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let mut answer = self.call("Runtime.evaluate", &query);
        assert!(answer.get("exceptionDetails").is_none(), "{expression}: {answer}");
        answer["result"]["value"].take()
    }

    /// Evaluates an expression and returns its text.
    pub fn text(&mut self, expression: &str) -> String {
        self.query(expression).as_str().unwrap_or_default().to_owned()
    }

    /// Waits until the expression is true. While the page is loading, the expression counts as false.
    pub fn until(&mut self, expression: &str) {
        let query = json!({"expression": expression, "returnByValue": true});
        until(expression, || {
            let answer = self.answer("Runtime.evaluate", &query);
            (answer["result"]["result"]["value"] == true).then_some(())
        });
    }

    /// Returns violations of accessibility rules, each with its element.
    ///
    /// # Panics
    /// If `tests/setup chromium` has not been run.
    pub fn accessibility_violations(&mut self) -> Vec<String> {
        let axe = fs::read_to_string(programs::tool("axe.min.js")).expect("tests/setup chromium");
        self.query(&format!("{axe}; undefined"));
        let result = self.query(
            "axe.run(document, {rules: {'meta-refresh': {enabled: false}}}).then(result => result.violations.flatMap(\
             fault => fault.nodes.map(node => `${fault.id}: ${node.html.slice(0, 200)}: ${node.failureSummary}`)))",
        );
        let result = result.as_array().expect("axe gives a list");
        result.iter().map(|fault| fault.as_str().unwrap_or_default().to_owned()).collect()
    }

    /// Returns the browser's error messages since the visit, such as violations of the content security policy and
    /// missing files.
    pub fn console_errors(&self) -> Vec<String> {
        let entries = self.events.iter().filter(|event| event["method"] == "Log.entryAdded");
        entries.map(|event| event["params"]["entry"]["text"].to_string()).collect()
    }

    /// Saves a screenshot of the page's first `height` pixels.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn picture(&mut self, to: &Path) {
        let result = self.call("Page.captureScreenshot", &json!({"format": "png"}));
        let result = result["data"].as_str().expect("a picture");
        let picture = BASE64.decode(result).expect("a picture in base64");
        fs::write(to, picture).expect("a picture can be written");
    }

    /// Calls a method that must succeed.
    fn call(&mut self, method: &str, params: &Value) -> Value {
        let mut answer = self.answer(method, params);
        assert!(answer.get("error").is_none(), "{method}: {answer}");
        answer["result"].take()
    }

    fn answer(&mut self, method: &str, params: &Value) -> Value {
        self.sent += 1;
        let id = self.sent;
        let mut question = json!({"id": id, "method": method, "params": params});
        if let Some(session) = &self.session {
            question["sessionId"] = json!(session);
        }
        write!(self.to, "{question}\0").expect("the browser listens");
        loop {
            let message = self.read();
            if message["id"] == id {
                return message;
            }
            self.events.push(message);
        }
    }

    fn read(&mut self) -> Value {
        let mut text = Vec::new();
        self.from.read_until(0, &mut text).expect("the browser can be read");
        assert_eq!(text.pop(), Some(0), "chromium has exited: is it installed? (tests/setup chromium)");
        serde_json::from_slice(&text).expect("the message is JSON")
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The browser's children are in its process group.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}
