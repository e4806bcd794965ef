/* A program without Python: registers the plugin, runs y = x + 1 on it from two threads, unregisters.
   c_host LIBONNXRUNTIME PLUGIN MODEL; prints what went wrong and ends with 1. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ort_abi.h"

static const char NAME[] = "MLXExecutionProvider";
static const OrtApi *api;
static OrtSession *session;

static void check(OrtStatus *status) {
  if (!status) return;
  fprintf(stderr, "%s\n", api->GetErrorMessage(status));
  exit(1);
}

static void *run(void *unused) {
  (void)unused;
  OrtMemoryInfo *memory;
  check(api->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory));
  for (int turn = 0; turn < 100; turn++) {
    float x[4] = {(float)turn, -1, 2, 0.5f};
    int64_t shape[2] = {1, 4};
    OrtValue *input = NULL, *output = NULL;
    const char *input_name = "x", *output_name = "y";
    check(api->CreateTensorWithDataAsOrtValue(memory, x, sizeof x, shape, 2, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT,
                                              &input));
    check(api->Run(session, NULL, &input_name, (const OrtValue *const *)&input, 1, &output_name, 1, &output));
    float *y;
    check(api->GetTensorMutableData(output, (void **)&y));
    for (int i = 0; i < 4; i++) {
      if (y[i] == x[i] + 1) continue;
      fprintf(stderr, "turn %d: y[%d] is %g\n", turn, i, (double)y[i]);
      exit(1);
    }
    api->ReleaseValue(input);
    api->ReleaseValue(output);
  }
  api->ReleaseMemoryInfo(memory);
  return NULL;
}

int main(int argc, char **argv) {
  if (argc != 4) return 2;
  void *runtime = dlopen(argv[1], RTLD_NOW);
  if (!runtime) {
    fprintf(stderr, "%s\n", dlerror());
    return 2;
  }
  const OrtApiBase *(*base)(void);
  void *address = dlsym(runtime, "OrtGetApiBase");
  memcpy(&base, &address, sizeof base);
  api = base()->GetApi(24);

  OrtEnv *env;
  OrtSessionOptions *options;
  check(api->CreateEnv(ORT_LOGGING_LEVEL_WARNING, "host", &env));
  check(api->RegisterExecutionProviderLibrary(env, NAME, argv[2]));
  const OrtEpDevice *const *devices;
  size_t count;
  check(api->GetEpDevices(env, &devices, &count));
  const OrtEpDevice *ours = NULL;
  for (size_t i = 0; i < count; i++) {
    if (!strcmp(api->EpDevice_EpName(devices[i]), NAME)) ours = devices[i];
  }
  check(api->CreateSessionOptions(&options));
  check(api->AddSessionConfigEntry(options, "session.disable_cpu_ep_fallback", "1"));
  check(api->SessionOptionsAppendExecutionProvider_V2(options, env, &ours, 1, NULL, NULL, 0));
  check(api->CreateSession(env, argv[3], options, &session));
  pthread_t threads[2];
  for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, run, NULL);
  for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
  api->ReleaseSession(session);
  api->ReleaseSessionOptions(options);
  check(api->UnregisterExecutionProviderLibrary(env, NAME));
  api->ReleaseEnv(env);
  puts("done");
  return 0;
}
