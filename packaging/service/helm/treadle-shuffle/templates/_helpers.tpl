{{- define "treadle.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* Suffixes and numbers of pods are added to it. */}}
{{- define "treadle.fullname" -}}
{{- $name := include "treadle.name" . -}}
{{- $both := contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) -}}
{{- .Values.fullnameOverride | default $both | trunc 45 | trimSuffix "-" -}}
{{- end -}}

{{- define "treadle.selector" -}}
app.kubernetes.io/name: {{ include "treadle.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "treadle.labels" -}}
{{ include "treadle.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "treadle.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "treadle.scheme" -}}
{{ empty .Values.tls.existingSecret | ternary "treadle" "treadle+tls" }}
{{- end -}}

{{/* Where servers register, and clients connect. */}}
{{- define "treadle.registry" -}}
{{- $own := printf "%s://%s-master.%s:%v" (include "treadle.scheme" .) (include "treadle.fullname" .) .Release.Namespace .Values.master.port -}}
{{- .Values.registry.url | default $own -}}
{{- end -}}

{{/* Refuses values that do not go together. */}}
{{- define "treadle.check" -}}
{{- if and .Values.tls.existingSecret .Values.insecure.existingSecret -}}
{{- fail "tls.existingSecret and insecure.existingSecret are both set: connections have TLS, or they do not" -}}
{{- end -}}
{{- if not (or .Values.tls.existingSecret .Values.insecure.existingSecret) -}}
{{- fail "who may connect? Set tls.existingSecret to a Secret with certificates, or insecure.existingSecret to one with a secret" -}}
{{- end -}}
{{- if and .Values.registry.existingSecret (not .Values.registry.url) -}}
{{- fail "registry.existingSecret is of no use without registry.url" -}}
{{- end -}}
{{- if eq (.Values.servers.port | int) (.Values.servers.httpPort | int) -}}
{{- fail "servers.port and servers.httpPort are the same" -}}
{{- end -}}
{{- end -}}

{{/* Options that say who may connect. */}}
{{- define "treadle.security" -}}
{{- if .Values.tls.existingSecret }}
- --tls
- /etc/treadle/tls/node
{{- else }}
- --insecure
- --secret-file
- /run/treadle/secret
{{- end }}
{{- end -}}

{{/* What the pods of both have. */}}
{{- define "treadle.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: { type: RuntimeDefault }
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "treadle.placement" -}}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "treadle.container" -}}
image: {{ include "treadle.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: { drop: [ALL] }
{{- end -}}

{{/*
Files of Secrets that only the process may read: Kubernetes gives them to root and a group, and Treadle refuses a
secret that others can read.
*/}}
{{- define "treadle.private" -}}
{{- $files := list -}}
{{- if .root.Values.insecure.existingSecret -}}
{{- $files = append $files "/etc/treadle/insecure/secret" -}}
{{- end -}}
{{- if and .token .root.Values.metrics.existingSecret -}}
{{- $files = append $files "/etc/treadle/metrics/token" -}}
{{- end -}}
{{- if $files }}
initContainers:
  - name: secrets
    {{- include "treadle.container" .root | nindent 4 }}
    command: [install, -m, "0400", -t, /run/treadle, {{ join ", " $files }}]
    resources:
      requests: { cpu: 10m, memory: 16Mi }
      limits: { memory: 64Mi }
    volumeMounts:
      {{- include "treadle.mounts" . | nindent 6 }}
{{- end }}
{{- end -}}

{{- define "treadle.mounts" -}}
- { name: run, mountPath: /run/treadle }
- { name: tmp, mountPath: /tmp }
{{- if .root.Values.tls.existingSecret }}
- { name: tls, mountPath: /etc/treadle/tls, readOnly: true }
{{- else }}
- { name: insecure, mountPath: /etc/treadle/insecure, readOnly: true }
{{- end }}
{{- if and .token .root.Values.metrics.existingSecret }}
- { name: metrics, mountPath: /etc/treadle/metrics, readOnly: true }
{{- end }}
{{- end -}}

{{- define "treadle.volumes" -}}
- name: run
  emptyDir: { medium: Memory, sizeLimit: 1Mi }
- name: tmp
  emptyDir: {}
{{- if .root.Values.tls.existingSecret }}
- name: tls
  secret:
    secretName: {{ .root.Values.tls.existingSecret }}
    defaultMode: 0440
    items:
      - { key: {{ .root.Values.tls.ca | quote }}, path: ca.pem }
      - { key: {{ .root.Values.tls.certificate | quote }}, path: node.pem }
      - { key: {{ .root.Values.tls.key | quote }}, path: node-key.pem }
{{- else }}
- name: insecure
  secret: { secretName: {{ .root.Values.insecure.existingSecret }}, defaultMode: 0440 }
{{- end }}
{{- if and .token .root.Values.metrics.existingSecret }}
- name: metrics
  secret: { secretName: {{ .root.Values.metrics.existingSecret }}, defaultMode: 0440 }
{{- end }}
{{- end -}}
