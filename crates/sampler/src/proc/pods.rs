//! Names of pods, read from the kubelet's log directories, so that the API server is not queried.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bailiff_proc::Directory;
use bailiff_snapshot::place::pod_directory;
use bailiff_snapshot::{Place, Relative};

/// Minimum time between two listings of the directory of pods, and between two for pods that were not found.
const PAUSE: Duration = Duration::from_secs(1);
const LONG_PAUSE: Duration = Duration::from_secs(10);
/// Maximum number of pods that were not found.
const MOST_MISSED: usize = 1024;

/// Names in `/var/log/pods`, which is listed when an unknown pod appears.
pub(crate) struct Pods {
    path: PathBuf,
    names: HashMap<String, (String, String)>,
    /// UIDs that were not in the last listing.
    missed: HashSet<String>,
    listed: Option<Duration>,
}

impl Pods {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, names: HashMap::new(), missed: HashSet::new(), listed: None }
    }

    /// Sets namespace and name of the pod, if known. `now` may be any monotonic clock.
    pub(crate) fn name(&mut self, place: &mut Place, now: Duration) {
        let Some(uid) = &place.pod_uid else { return };
        // The name of a new pod is needed at once: without it, it is unknown which pod of this name has an allocated GPU.
        let pause = if self.missed.contains(uid) { LONG_PAUSE } else { PAUSE };
        let due = self.listed.is_none_or(|listed| now.saturating_sub(listed) >= pause);
        if !self.names.contains_key(uid) && due {
            self.list();
            self.listed = Some(now);
            if self.missed.len() >= MOST_MISSED {
                self.missed.clear();
            }
            let is_missed = !self.names.contains_key(uid);
            self.missed.extend(is_missed.then(|| uid.clone()));
        }
        if let Some((namespace, pod)) = self.names.get(uid) {
            place.namespace = Some(namespace.clone());
            place.pod = Some(pod.clone());
        }
    }

    /// Sets the names of the pods of these processes, which share their places.
    pub(crate) fn name_all(&mut self, relatives: &mut [Relative], now: Duration) {
        let mut places: HashMap<Arc<Place>, Arc<Place>> = HashMap::new();
        for relative in relatives.iter_mut().filter(|relative| relative.place.pod_uid.is_some()) {
            let named = places.entry(Arc::clone(&relative.place)).or_insert_with(|| {
                let mut place = Place::clone(&relative.place);
                self.name(&mut place, now);
                Arc::new(place)
            });
            relative.place = Arc::clone(named);
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
            self.missed.retain(|uid| !names.contains_key(uid));
            self.names = names;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_pod_is_named_at_once_and_a_missing_one_is_looked_for_seldom() {
        let directory = tempfile::tempdir().unwrap();
        let mut pods = Pods::new(directory.path().to_owned());
        let add = |uid: &str| std::fs::create_dir(directory.path().join(format!("team_web_{uid}"))).unwrap();
        let mut name = |uid: &str, seconds: u64| {
            let mut place = Place { pod_uid: Some(uid.to_owned()), ..Place::default() };
            pods.name(&mut place, Duration::from_secs(seconds));
            place.pod.is_some()
        };
        add("a");
        assert!(name("a", 100));
        assert!(!name("b", 101));
        add("b");
        add("c");
        assert!(!name("b", 105));
        assert!(name("c", 105), "it is new");
        assert!(name("b", 105), "the directory was listed");
        assert!(!name("d", 110));
        add("d");
        assert!(!name("d", 115) && name("d", 120));
    }
}
