{{- define "trtfleet.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- /* At most 50 characters, so that a suffix still makes a DNS label. */ -}}
{{- define "trtfleet.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- $name = .Values.fullnameOverride -}}
{{- else if contains $name .Release.Name -}}
{{- $name = .Release.Name -}}
{{- else -}}
{{- $name = printf "%s-%s" .Release.Name $name -}}
{{- end -}}
{{- $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "trtfleet.selectorLabels" -}}
app.kubernetes.io/name: {{ include "trtfleet.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{- /* Not those of the workers' pods, whose name is trtfleet-worker and which trtfleet manages. */ -}}
{{- define "trtfleet.labels" -}}
{{ include "trtfleet.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name (replace "+" "_" .Chart.Version) | trunc 63 }}
{{- end -}}

{{- define "trtfleet.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "trtfleet.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name: name the service account that exists, or let serviceAccount.create make one" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "trtfleet.image" -}}
{{- $repository := required "image.repository: name the operator's image, which the Dockerfile's target `operator` builds (docs/install.md)" .Values.image.repository -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" $repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "trtfleet.signingSecret" -}}
{{- if .Values.signing.existingSecret -}}
{{- if .Values.signing.create -}}
{{- fail "signing: set signing.create or signing.existingSecret, not both" -}}
{{- end -}}
{{- .Values.signing.existingSecret -}}
{{- else if .Values.signing.create -}}
{{- printf "%s-signing" (include "trtfleet.fullname" .) -}}
{{- else -}}
{{- fail "signing: published engines are signed, so set signing.create=true to have a key made, or name yours in signing.existingSecret (a Secret with the key signing-key.pem)" -}}
{{- end -}}
{{- end -}}

{{- /* The operator's config.yaml: its settings under their own names. An empty text is a setting left out. */ -}}
{{- define "trtfleet.config" -}}
{{- $workers := dict -}}
{{- range $key, $value := omit .Values.workers "serviceAccounts" "allowedServiceAccounts" -}}
{{- if not (kindIs "invalid" $value) -}}
{{- if not (and (kindIs "string" $value) (empty $value)) -}}
{{- $_ := set $workers $key $value -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $accounts := .Values.workers.allowedServiceAccounts -}}
{{- range .Values.workers.serviceAccounts -}}
{{- $accounts = append $accounts .name -}}
{{- end -}}
{{- $_ := set $workers "allowedServiceAccounts" (uniq $accounts) -}}
{{- $config := dict
  "cluster" (required "clusterName: name this cluster (--set clusterName=prod-eu); it stands in every published pointer, so choose one to keep" .Values.clusterName)
  "namespaces" .Values.watchNamespaces
  "operatorNamespace" .Release.Namespace
  "leaseName" (include "trtfleet.fullname" .)
  "storesFolder" "/etc/trtfleet/stores"
  "signingKey" "/etc/trtfleet/signing/signing-key.pem"
  "port" 8080
  "workers" $workers -}}
{{- toYaml (merge $config .Values.operator) -}}
{{- end -}}

{{- /* What the operator may do where TuningJobs are; docs/rbac.md has the reasons. */ -}}
{{- define "trtfleet.namespacedRules" -}}
- apiGroups: [trtfleet.dev]
  resources: [tuningjobs]
  verbs: [get, list, watch]
- apiGroups: [trtfleet.dev]
  resources: [tuningjobs/status]
  verbs: [patch]
- apiGroups: [trtfleet.dev]
  resources: [tuningjobs/finalizers]
  verbs: [update]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [list]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [list, create, patch]
{{- end -}}

{{- define "trtfleet.clusterRules" -}}
- apiGroups: [trtfleet.dev]
  resources: [tunerruntimes, tunerchannels, artifactstores]
  verbs: [get, list, watch]
- apiGroups: [trtfleet.dev]
  resources: [tunerruntimes/status, tunerchannels/status, artifactstores/status]
  verbs: [patch]
{{- if .Values.operator.readNodes }}
- apiGroups: [""]
  resources: [nodes]
  verbs: [list]
{{- end }}
{{- end -}}

{{- /* Ports of an egress rule: (list ports protocol). */ -}}
{{- define "trtfleet.egress" -}}
- ports:
  {{- range .ports }}
    - {port: {{ . }}, protocol: TCP}
  {{- end }}
  {{- with .cidrs }}
  to:
    {{- range . }}
    - ipBlock: {cidr: {{ . | quote }}}
    {{- end }}
  {{- end }}
{{- end -}}
