//! The rules of the trial, as text for the enforcer and as data for the witness.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use crate::world::Process;

/// A rule.
pub(crate) struct Rule {
    pub(crate) name: &'static str,
    of: &'static str,
    users: &'static [u32],
    when: &'static str,
    /// Time between TERM and KILL.
    pub(crate) grace: Duration,
    /// Targets younger than this are exempt.
    pub(crate) startup_grace: Duration,
    steps: &'static str,
}

/// Users whose processes the rules select.
pub(crate) const PROCESS: u32 = 2001;
pub(crate) const YOUNG: u32 = 2002;
pub(crate) const TREE: u32 = 2003;
pub(crate) const CONTAINER: u32 = 2004;
pub(crate) const TWO_GPUS: u32 = 2005;
pub(crate) const COMPUTING: u32 = 2006;
/// User whose processes are always protected.
pub(crate) const PROTECTED: u32 = 2008;

pub(crate) const RULES: [Rule; 5] = [
    Rule::new("process", ("process", &[0, PROCESS, TWO_GPUS, PROTECTED]), [1_000, 0]),
    Rule::new("young", ("process", &[YOUNG]), [600, 3_000]),
    Rule::new("tree", ("workload", &[TREE]), [800, 1_000]),
    Rule::new("container", ("workload", &[CONTAINER]), [700, 0]),
    Rule {
        when: "gpu_util: {max: 1%}, cpu_util: {max: 20%}",
        steps: "{signal: SIGUSR1}, ",
        ..Rule::new("computing", ("process", &[COMPUTING]), [500, 0])
    },
];

impl Rule {
    /// Returns a rule for targets of this kind that belong to these users. The grace periods are in
    /// milliseconds.
    const fn new(
        name: &'static str,
        (of, users): (&'static str, &'static [u32]),
        [grace, startup]: [u64; 2],
    ) -> Self {
        let (grace, startup_grace) = (Duration::from_millis(grace), Duration::from_millis(startup));
        Self { name, of, users, when: "gpu_util: {max: 1%}", grace, startup_grace, steps: "" }
    }
}

/// The parts that differ between rules files.
#[derive(Debug, Clone)]
pub(crate) struct Policy {
    /// Whether every rule has `mode: dry-run`.
    pub(crate) watch: bool,
    /// Protected users in addition to [`PROTECTED`].
    pub(crate) protect: Vec<u32>,
    /// Protected process names in addition to `precious`.
    pub(crate) comms: Vec<String>,
    /// Limits on actions within an hour: per GPU, per user, per node.
    pub(crate) limits: [usize; 3],
}

impl Policy {
    /// Returns the most permissive policy.
    pub(crate) fn open() -> Self {
        Self { watch: false, protect: Vec::new(), comms: Vec::new(), limits: [100_000; 3] }
    }

    /// Returns the text of the rules file.
    pub(crate) fn text(&self, exe: &Path) -> String {
        let users: Vec<u32> = self.protect.iter().copied().chain([PROTECTED]).collect();
        let comms: Vec<&str> = self.comms.iter().map(String::as_str).chain(["precious"]).collect();
        let mode = if self.watch { "dry-run" } else { "enforce" };
        let [gpu, user, node] = self.limits;
        let mut text = format!(
            "version: 1\nmode: {mode}\n\
             defaults: {{startup_grace: 0s, clear_after: 1, cooldown: 500ms}}\n\
             limits: {{per_gpu_hour: {gpu}, per_user_hour: {user}, per_node_hour: {node}}}\n\
             protect: {{users: {}, comms: {comms:?}, exe: {:?}}}\nrules:\n",
            quoted(&users),
            exe.display().to_string(),
        );
        for rule in &RULES {
            let _ = write!(
                text,
                "  - name: {}\n    target: {}\n    select: {{users: {}}}\n    except: [{{comms: [exempted], reason: trial}}]\n    \
                 startup_grace: {}ms\n    when: {{{}}}\n    for: {{samples: 3}}\n    \
                 then: [{{flag: info}}, {}{{terminate: {{grace: {}ms}}}}]\n",
                rule.name,
                rule.of,
                quoted(rule.users),
                rule.startup_grace.as_millis(),
                rule.when,
                rule.steps,
                rule.grace.as_millis(),
            );
        }
        text
    }

    /// Returns why rules in this policy must not signal a process.
    pub(crate) fn exempts(&self, process: &Process) -> Option<String> {
        let contained = process.container.is_some();
        match process {
            Process { precious: true, .. } => Some("its program is protected".to_owned()),
            Process { uid: 0, .. } if !contained => Some("it is root's".to_owned()),
            Process { uid, .. } if *uid == PROTECTED || self.protect.contains(uid) => {
                Some(format!("its user {uid} is protected"))
            }
            Process { comm, .. } if comm == "precious" || self.comms.contains(comm) => {
                Some(format!("its name {comm} is protected"))
            }
            Process { comm, .. } if comm == "exempted" => Some("`except` names it".to_owned()),
            Process { foreign: true, .. } => Some("it is another user's than its workload".to_owned()),
            _ => None,
        }
    }
}

fn quoted(users: &[u32]) -> String {
    format!("{:?}", users.iter().map(u32::to_string).collect::<Vec<_>>())
}

/// Returns the rule with this name.
pub(crate) fn rule(name: &str) -> Option<&'static Rule> {
    RULES.iter().find(|rule| rule.name == name)
}
