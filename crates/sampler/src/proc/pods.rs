//! Names of pods, from the directories that the kubelet keeps for their logs: no API server is asked.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use bailiff_snapshot::Place;
use bailiff_snapshot::place::pod_directory;

use super::files::Directory;

/// A pod that is not found is not looked for again at once.
const PAUSE: Duration = Duration::from_secs(10);

/// The directory `/var/log/pods`, listed when an unknown pod shows up.
pub(crate) struct Pods {
    path: PathBuf,
    names: HashMap<String, (String, String)>,
    listed: Option<Duration>,
}

impl Pods {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, names: HashMap::new(), listed: None }
    }

    /// Fills in namespace and name of the pod, where they are known; `now` is any steady clock.
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
        let Ok(names) = Directory::open(&self.path).and_then(|directory| directory.names()) else { return };
        self.names = names
            .iter()
            .filter_map(|name| pod_directory(name))
            .map(|(namespace, pod, uid)| (uid.to_owned(), (namespace.to_owned(), pod.to_owned())))
            .collect();
    }
}
