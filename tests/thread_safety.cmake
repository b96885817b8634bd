# Has clang check what guards which fields (pm/mutex.h), and that it would find a lock left out.
# cmake -DCLANG=clang++ -DSOURCE_DIR=... -DWORK_DIR=... -P this

set(flags -std=c++20 -fsyntax-only -Wthread-safety -Werror -I${SOURCE_DIR} -I${SOURCE_DIR}/include)
foreach(file admission bound cache_manager evict health item_uses resizer snapshot space store store_impl)
  execute_process(COMMAND ${CLANG} ${flags} ${SOURCE_DIR}/engine/${file}.cc
    RESULT_VARIABLE status ERROR_VARIABLE errors)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "engine/${file}.cc:\n${errors}")
  endif()
endforeach()

file(READ ${SOURCE_DIR}/engine/store_impl.cc text)
set(lock "const Admission::Entered entered(admission_);")
string(FIND "${text}" "${lock}" place)
string(REPLACE "${lock}" "" text "${text}")
file(WRITE ${WORK_DIR}/without_lock.cc "${text}")
execute_process(COMMAND ${CLANG} ${flags} ${WORK_DIR}/without_lock.cc
  RESULT_VARIABLE status ERROR_VARIABLE errors)
file(REMOVE_RECURSE ${WORK_DIR})
if(place LESS 0 OR status EQUAL 0 OR NOT errors MATCHES "thread-safety")
  message(FATAL_ERROR "a lock that was left out of store_impl.cc was not found:\n${errors}")
endif()
