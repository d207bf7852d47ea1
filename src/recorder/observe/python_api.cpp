#include "recorder/observe/python_api.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>

namespace tonnage::recorder {
namespace {

template <class F>
bool find(F& function, const char* name, const char* other_name = nullptr) {
  void* at = dlsym(RTLD_DEFAULT, name);
  if (!at && other_name) at = dlsym(RTLD_DEFAULT, other_name);
  function = reinterpret_cast<F>(at);
  return at != nullptr;
}

PythonApi look_up() {
  PythonApi api;
  bool all = find(api.is_initialized, "Py_IsInitialized");
  if (!all) return api;
  find(api.is_finalizing, "Py_IsFinalizing", "_Py_IsFinalizing");
  all &= find(api.gil_check, "PyGILState_Check") & find(api.gil_ensure, "PyGILState_Ensure") &
         find(api.gil_release, "PyGILState_Release") &
         find(api.this_thread_state, "PyGILState_GetThisThreadState") &
         find(api.frame_of_thread, "PyThreadState_GetFrame") &
         find(api.frame_back, "PyFrame_GetBack") & find(api.frame_code, "PyFrame_GetCode") &
         find(api.frame_line, "PyFrame_GetLineNumber") & find(api.code_line, "PyCode_Addr2Line") &
         find(api.get_attribute, "PyObject_GetAttrString") &
         find(api.utf8, "PyUnicode_AsUTF8AndSize") & find(api.incref, "Py_IncRef") &
         find(api.decref, "Py_DecRef") & find(api.error_fetch, "PyErr_Fetch") &
         find(api.error_restore, "PyErr_Restore") & find(api.error_clear, "PyErr_Clear") &
         find(api.module_dict, "PyImport_GetModuleDict") &
         find(api.dict_get, "PyDict_GetItemString") & find(api.call_method, "PyObject_CallMethod");
  find(api.frame_lasti, "PyFrame_GetLasti");
  find(api.gc_disable, "PyGC_Disable");
  find(api.gc_enable, "PyGC_Enable");
  const char* (*version)() = nullptr;
  if (all && find(version, "Py_GetVersion")) {
    const char* text = version();
    api.version.assign(text, std::strcspn(text, " "));
    api.minor = text[0] == '3' && text[1] == '.' ? std::atoi(text + 2) : 0;
  }
  api.present = all && api.minor > 0;
  return api;
}

}  // namespace

const PythonApi& python_api() {
  static const PythonApi* api = new PythonApi(look_up());
  return *api;
}

bool holds_gil() {
  const PythonApi& api = python_api();
  return api.present && api.is_initialized() && api.this_thread_state() && api.gil_check();
}

PythonScope::PythonScope() {
  const PythonApi& api = python_api();
  if (!api.running()) return;
  gil_state_ = api.gil_ensure();
  entered_ = true;
  api.error_fetch(&error_[0], &error_[1], &error_[2]);
  if (api.gc_disable) gc_was_on_ = api.gc_disable();
}

PythonScope::~PythonScope() {
  if (!entered_) return;
  const PythonApi& api = python_api();
  api.error_clear();
  if (gc_was_on_ && api.gc_enable) api.gc_enable();
  api.error_restore(error_[0], error_[1], error_[2]);
  api.gil_release(gil_state_);
}

}  // namespace tonnage::recorder
