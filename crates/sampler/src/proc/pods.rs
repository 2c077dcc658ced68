//! Names of pods, read from the kubelet's log directories, so that the API server is not queried.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use bailiff_proc::Directory;
use bailiff_snapshot::Place;
use bailiff_snapshot::place::pod_directory;

/// Minimum time between two listings of the directory of pods.
const PAUSE: Duration = Duration::from_secs(10);

/// Names in `/var/log/pods`, which is listed when an unknown pod appears.
pub(crate) struct Pods {
    path: PathBuf,
    names: HashMap<String, (String, String)>,
    listed: Option<Duration>,
}

impl Pods {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, names: HashMap::new(), listed: None }
    }

    /// Sets namespace and name of the pod, if known. `now` may be any monotonic clock.
    pub(crate) fn name(&mut self, place: &mut Place, now: Duration) {
        let Some(uid) = &place.pod_uid else { return };
        let due = self.listed.is_none_or(|listed| now.saturating_sub(listed) >= PAUSE);
        if !self.names.contains_key(uid) && due {
            self.list();
            self.listed = Some(now);
        }
        if let Some((namespace, pod)) = self.names.get(uid) {
            place.namespace = Some(namespace.clone());
            place.pod = Some(pod.clone());
        }
    }

    fn list(&mut self) {
        let mut names = HashMap::new();
        let add = |name: &str| {
            let pod = pod_directory(name);
            names.extend(pod.map(|(space, pod, uid)| (uid.to_owned(), (space.to_owned(), pod.to_owned()))));
            true
        };
        if Directory::open(&self.path).and_then(|directory| directory.each_name(add)).is_ok() {
            self.names = names;
        }
    }
}
