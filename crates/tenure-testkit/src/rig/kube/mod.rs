//! A fake Kubernetes API server for Leases, as far as electors use one.
//!
//! It behaves like the real server in: versions and conflicts, uids, paged lists whose items lack their type, label
//! selectors, watches with bookmarks, 410 for compacted versions, content types, validation and the removal of unknown
//! fields. It can inject faults. It keeps everything in memory and listens on its own port.

mod faults;
mod real;
mod selector;
mod serve;
mod state;
mod validate;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};

use self::faults::Faults;
pub use self::faults::KubeFault;
pub use self::real::real_kubernetes;
use self::serve::Shared;
use self::state::ApiState;

/// Bearer token in the kubeconfig.
const TOKEN: &str = "the-rig-lets-us-in";

/// Field manager for manual changes.
const KUBECTL: &str = "kubectl";

/// A fake API server, stopped on drop.
///
/// ```
/// let api = tenure_testkit::rig::KubeApi::start().unwrap();
/// assert!(api.url("prod").starts_with("k8s:prod?kubeconfig="));
/// assert_eq!(api.lease("prod", "nightly"), None);
/// ```
pub struct KubeApi {
    shared: Arc<Shared>,
    folder: tempfile::TempDir,
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl KubeApi {
    /// Starts a server on a free port.
    pub fn start() -> io::Result<KubeApi> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            world: Mutex::default(),
            faults: Mutex::default(),
            moved: watch::channel(0).0,
            sent_watch_events: AtomicU64::new(0),
            closed: watch::channel(0).0,
        });
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let serving = shared.clone();
        let thread = std::thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = stopped => {}
                    () = serve::serve(listener, serving) => {}
                }
            });
            runtime.shutdown_background();
        });
        let folder = tempfile::tempdir()?;
        let api = KubeApi { shared, folder, address, stop: Some(stop), thread: Some(thread) };
        api.write_kubeconfig("config", &json!({ "token": TOKEN }))?;
        Ok(api)
    }

    /// The accepted bearer token.
    pub fn token(&self) -> &'static str {
        TOKEN
    }

    /// Writes a kubeconfig with this name and user credentials.
    pub fn write_kubeconfig(&self, file: &str, user: &Value) -> io::Result<PathBuf> {
        let path = self.folder.path().join(file);
        std::fs::write(&path, self.config(user))?;
        Ok(path)
    }

    fn config(&self, user: &Value) -> String {
        let cluster = json!({ "name": "rig", "cluster": { "server": format!("http://{}", self.address) } });
        let context =
            json!({ "name": "rig", "context": { "cluster": "rig", "user": "rig", "namespace": "default" } });
        let user = json!({ "name": "rig", "user": user });
        // JSON is valid YAML.
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "rig",
            "clusters": [cluster], "contexts": [context], "users": [user],
        })
        .to_string()
    }

    /// Path of a kubeconfig for `$KUBECONFIG`.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("config")
    }

    /// Store URL of a namespace.
    pub fn url(&self, namespace: &str) -> String {
        format!("k8s:{namespace}?kubeconfig={}", self.kubeconfig().display())
    }

    /// Listen address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    fn world(&self) -> MutexGuard<'_, ApiState> {
        self.shared.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.shared.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A Lease, as `kubectl get -o json` shows it.
    pub fn lease(&self, namespace: &str, name: &str) -> Option<Value> {
        let reply = self.world().get(namespace, name);
        (reply.status == 200).then_some(reply.body)
    }

    /// All Leases of a namespace.
    pub fn leases(&self, namespace: &str) -> Vec<Value> {
        let world = self.world();
        world.leases.iter().filter(|((of, _), _)| of == namespace).map(|(_, object)| object.clone()).collect()
    }

    /// Creates a Lease. Returns the status and body of the response.
    pub fn create(&self, namespace: &str, object: Value) -> (u16, Value) {
        let reply = self.world().create(namespace, object, KUBECTL);
        self.shared.notify_watchers();
        (reply.status, reply.body)
    }

    /// Replaces a Lease if its version is current. Returns the status and body of the response.
    pub fn update(&self, namespace: &str, name: &str, object: Value) -> (u16, Value) {
        let reply = self.world().update(namespace, name, object, KUBECTL);
        self.shared.notify_watchers();
        (reply.status, reply.body)
    }

    /// Changes a Lease whatever its version, as `kubectl patch --type=merge` does.
    pub fn patch(&self, namespace: &str, name: &str, patch: &Value) -> u16 {
        let reply = self.world().patch(namespace, name, patch, KUBECTL);
        self.shared.notify_watchers();
        reply.status
    }

    /// Deletes a Lease, as `kubectl delete` does.
    pub fn delete(&self, namespace: &str, name: &str) -> bool {
        let reply = self.world().delete(namespace, name);
        self.shared.notify_watchers();
        reply.status == 200
    }

    /// Adds a pod that can be labelled.
    pub fn add_pod(&self, namespace: &str, name: &str) {
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": namespace, "labels": {} } });
        self.world().pods.insert((namespace.into(), name.into()), pod);
    }

    /// A label of a pod.
    pub fn pod_label(&self, namespace: &str, name: &str, key: &str) -> Option<String> {
        let world = self.world();
        let pod = world.pods.get(&(namespace.to_owned(), name.to_owned()))?;
        pod["metadata"]["labels"][key].as_str().map(str::to_owned)
    }

    /// Makes these the only existing namespaces.
    pub fn only_namespaces(&self, namespaces: &[&str]) {
        self.world().namespaces = namespaces.iter().map(|name| (*name).to_owned()).collect();
    }

    /// Compacts the change log: a watch or list that starts or continues before this point gets status 410.
    pub fn compact(&self) {
        self.world().compact();
    }

    /// Closes all watches.
    pub fn close_watches(&self) {
        self.shared.closed.send_modify(|count| *count += 1);
    }

    /// Makes the next `times` requests with this verb (`get`, `list`, `watch`, `create`, `update`, `patch`, or `*`)
    /// on objects whose name contains `name` fail.
    pub fn fail(&self, verb: &str, name: &str, fault: KubeFault, times: u32) {
        self.faults().add(verb, name, fault, times);
    }

    /// Runs an action once, after a request with this verb on this object has arrived and before it is served. The
    /// action can change the state on which the request is based.
    pub fn before(&self, verb: &str, name: &str, act: impl FnOnce() + Send + 'static) {
        self.faults().hook(verb, name, Box::new(act));
    }

    /// Removes all faults.
    pub fn clear_faults(&self) {
        self.faults().clear();
        self.shared.closed.send_modify(|_| {});
    }

    /// Denies a verb on `leases` or `pods` to all clients, as a missing role rule does.
    pub fn deny(&self, verb: &str, resource: &str) {
        self.faults().deny(verb, resource);
    }

    /// Rejects the credentials of all clients, or accepts them again.
    pub fn reject_credentials(&self, is_locked: bool) {
        self.faults().locked = is_locked;
    }

    /// Verb and name of the requests since the last call.
    pub fn requests(&self) -> Vec<(String, String)> {
        std::mem::take(&mut self.faults().requests)
    }

    /// Number of objects in list responses since the last call.
    pub fn listed_count(&self) -> u64 {
        std::mem::take(&mut self.world().listed)
    }

    /// Number of watch events sent since the last call, without bookmarks.
    pub fn watch_event_count(&self) -> u64 {
        self.shared.sent_watch_events.swap(0, Ordering::Relaxed)
    }
}

impl Drop for KubeApi {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
